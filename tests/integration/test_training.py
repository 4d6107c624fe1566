"""Whole runs of the real loop at tiny size."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.runs import StopAfter, adapter_bytes, metrics_of

from physedit.train.checkpoint import CheckpointIncomplete
from physedit.train.config import ConfigError
from physedit.train.loop import NonFiniteLoss, Stopped
from physedit.train.signals import StopFlag

WITH_HOOK = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=6", "eval_steps=[4]")


class StopOnceLogged(StopFlag):
    """A stop flag that a signal raises once metrics.jsonl has the training line of ``step``."""

    def __init__(self, metrics: Path, step: int) -> None:
        self._metrics, self._step = metrics, step

    @property
    def signal_number(self) -> int | None:
        is_logged = self._metrics.exists() and f'"step": {self._step}, "train/loss"' in self._metrics.read_text()
        return signal.SIGTERM if is_logged else None

    @signal_number.setter
    def signal_number(self, _number: int | None) -> None:
        """The ranks' agreement changes nothing here."""


def test_a_run_leaves_the_promised_files(run_smoke):
    folder = run_smoke()
    for name in ("config.yaml", "overrides.txt", "command.txt", "environment.json", "metrics.jsonl", "summary.json"):
        assert (folder / name).stat().st_size > 0, name
    environment = json.loads((folder / "environment.json").read_text())
    assert (environment["distributed_type"], environment["num_processes"]) == ("NO", 1)
    assert [line["step"] for line in metrics_of(folder)] == [2, 4, 6, 8]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_00000008"]


def test_training_moves_every_adapter_matrix_and_no_base_weight(run_smoke, monkeypatch):
    from physedit.models import flux_kontext
    from physedit.train import assemble

    built = []
    build = assemble.build_checked
    monkeypatch.setattr(
        "physedit.train.sft.build_checked",
        lambda key, node: built.append(build(key, node)) or built[-1],
    )
    folder = run_smoke()
    editor = next(part for part in built if isinstance(part, flux_kontext.FluxKontext))
    reference = flux_kontext.FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=24)
    trained = {n.replace(".base_layer", ""): p for n, p in editor.denoiser.named_parameters() if "lora" not in n}
    for name, parameter in reference.denoiser.named_parameters():
        assert torch.equal(parameter, trained[name]), f"{name} is frozen, but moved"
    adapter = load_file(folder / "checkpoints/step_00000008/adapter/pytorch_lora_weights.safetensors")
    matrices = [value for name, value in adapter.items() if "lora_B" in name]
    assert len(matrices) > 20
    assert all(value.norm() > 0 for value in matrices)


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_resume_equals_the_uninterrupted_run(run_smoke, stop_after):
    whole = run_smoke("ema_decay=0.9", "log_every=3", name="whole")
    with pytest.raises(Stopped):
        run_smoke("ema_decay=0.9", "log_every=3", name="stopped", stop=StopAfter(stop_after))
    resumed = run_smoke("ema_decay=0.9", "log_every=3", name="stopped")
    assert adapter_bytes(whole, 8) == adapter_bytes(resumed, 8)
    assert metrics_of(whole) == metrics_of(resumed)


def test_two_runs_are_identical_and_another_seed_is_not(run_smoke):
    first, second, other = run_smoke(name="a"), run_smoke(name="b"), run_smoke("seed=5", name="c")
    assert adapter_bytes(first, 8) == adapter_bytes(second, 8)
    assert metrics_of(first) == metrics_of(second)
    assert adapter_bytes(first, 8) != adapter_bytes(other, 8)


def test_accumulation_gives_the_same_steps_as_one_batch(run_smoke):
    split, whole = run_smoke("micro_batch=1", name="split"), run_smoke("micro_batch=4", name="whole")
    for one, other in zip(metrics_of(split), metrics_of(whole), strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], rel=1e-5)  # sums in another order
        assert one["train/samples"] == other["train/samples"]


def test_the_hook_leaves_training_bit_identical(run_smoke):
    without, with_hook = run_smoke(name="without"), run_smoke(*WITH_HOOK, name="with")
    trained = [line for line in metrics_of(with_hook) if "train/loss" in line]
    assert trained == metrics_of(without)
    assert adapter_bytes(without, 8) == adapter_bytes(with_hook, 8)
    steps = [line["step"] for line in metrics_of(with_hook) if "scenes/physics_acc" in line]
    assert steps == [0, 4, 8]


def test_an_adapter_with_b_zero_changes_no_metric(run_smoke):
    folder = run_smoke("eval=scenes", "eval.scenes.num_steps=2", "optimizer.lr=0.0", "num_steps=4")
    newest = json.loads((folder / "summary.json").read_text())["newest"]
    assert newest["step"] == 4
    assert len(newest["metrics"]) >= 9
    for key, metric in newest["metrics"].items():
        if metric["n"]:
            assert metric["base"] == metric["tuned"], key
            assert metric["change"] == 0.0, key
            assert metric["ci95"] == [0.0, 0.0], key


def test_a_stop_during_an_evaluation_resumes_into_it(run_smoke, tmp_path):
    whole = run_smoke(*WITH_HOOK, name="whole")
    with pytest.raises(Stopped, match="evaluation"):
        run_smoke(*WITH_HOOK, name="stopped", stop=StopOnceLogged(tmp_path / "stopped" / "metrics.jsonl", step=4))
    resumed = run_smoke(*WITH_HOOK, name="stopped")
    assert metrics_of(whole) == metrics_of(resumed)
    assert adapter_bytes(whole, 8) == adapter_bytes(resumed, 8)


def test_a_run_that_diverges_stops_and_saves_nothing_that_is_not_finite(run_smoke, tmp_path):
    with pytest.raises(NonFiniteLoss, match="step"):
        run_smoke("optimizer.lr=1.0e30", "max_grad_norm=null", "checkpoint.every=1", "log_every=1", name="bad")
    for folder in (tmp_path / "bad" / "checkpoints").glob("step_*"):
        adapter = load_file(folder / "adapter" / "pytorch_lora_weights.safetensors")
        assert all(value.isfinite().all() for value in adapter.values()), folder.name


def test_a_finished_run_is_only_reported(run_smoke):
    folder = run_smoke(*WITH_HOOK)
    before = {path: path.stat().st_mtime_ns for path in (folder / "checkpoints").rglob("*")}
    again = run_smoke(*WITH_HOOK)
    assert {path: path.stat().st_mtime_ns for path in (again / "checkpoints").rglob("*")} == before
    assert [line["step"] for line in metrics_of(again) if "train/loss" in line] == [2, 4, 6, 8]


def test_other_settings_are_refused_for_an_existing_run(run_smoke):
    run_smoke()
    with pytest.raises(ConfigError, match=r"optimizer\.lr was"):
        run_smoke("optimizer.lr=0.5")
    with pytest.raises(ConfigError, match="resume=never"):
        run_smoke("resume=never")
    run_smoke("schedule=cosine", name="cosine")
    with pytest.raises(ConfigError, match="schedule=constant"):
        run_smoke("schedule=cosine", "num_steps=10", name="cosine")


@pytest.mark.parametrize("optimizer", ["torch.optim.SGD", "torch.optim.NAdam"])
def test_any_torch_optimizer_resumes_exactly(run_smoke, optimizer):
    chosen = (f"optimizer._target_={optimizer}", "~optimizer.betas", "~optimizer.eps")
    whole = run_smoke(*chosen, name="whole")
    with pytest.raises(Stopped):
        run_smoke(*chosen, name="stopped", stop=StopAfter(3))
    assert adapter_bytes(run_smoke(*chosen, name="stopped"), 8) == adapter_bytes(whole, 8)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(run_smoke):
    folder = run_smoke()
    (folder / "checkpoints" / "step_00000008" / "optimizer.safetensors").write_bytes(b"")
    before = metrics_of(folder)
    with pytest.raises(CheckpointIncomplete, match="None of the 1 checkpoints"):
        run_smoke()
    assert metrics_of(folder) == before


def test_a_longer_run_goes_on_from_the_shorter_one(run_smoke):
    run_smoke()
    folder = run_smoke("num_steps=10")
    assert [line["step"] for line in metrics_of(folder)] == [2, 4, 6, 8, 10]
