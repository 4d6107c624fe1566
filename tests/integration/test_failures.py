"""What a run does when something fails, and what is asked of it from outside."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.full_disk import fill_disk
from tests.support.runs import adapter_bytes, metrics_of

from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.train import loop, sft
from physedit.train import signals as signals_module
from physedit.train.checkpoint import verify
from physedit.train.loop import NonFiniteLoss
from physedit.train.record_lines import RecordNotWritten
from physedit.train.signals import StopFlag, Stopped, stop_on_signal

WITH_HOOK = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=6", "eval_steps=[4]")


class AtStep(StopFlag):
    """Does something when the loop asks for the ``step``-th time, which it does once a step."""

    def __init__(self, step: int, action) -> None:
        self._left, self._action = step, action

    @property
    def signal_number(self) -> int | None:
        self._left -= 1
        if self._left == 0:
            self._action()
        return None

    @signal_number.setter
    def signal_number(self, _number: int | None) -> None:
        """It is not asked again."""


def broken_at(step: int):
    whole = PicaBenchHook.run

    def run(self, context):
        if context.step == step:
            raise RuntimeError("the judge has left")
        return whole(self, context)

    return run


def test_a_hook_that_fails_is_marked_and_training_goes_on(run_smoke, monkeypatch):
    plain = run_smoke(name="plain")
    with monkeypatch.context() as patch:
        patch.setattr(PicaBenchHook, "run", broken_at(4))
        folder = run_smoke(*WITH_HOOK, "best_metric=scenes/physics_acc", name="failed")
    assert adapter_bytes(folder, 8) == adapter_bytes(plain, 8)
    assert [line["step"] for line in metrics_of(folder) if "scenes/physics_acc" in line] == [0, 8]
    failed = [{"hook": "scenes", "step": 4, "error": "RuntimeError: the judge has left"}]
    assert json.loads((folder / "summary.json").read_text())["failed_evaluations"] == failed
    assert json.loads((folder / "failed_evaluations.json").read_text())["failed"] == failed
    assert "scenes at step 4" in (folder / "report.html").read_text()
    assert json.loads((run_smoke(*WITH_HOOK, name="failed") / "summary.json").read_text())["failed_evaluations"]


def test_a_hook_that_fails_stops_the_run_if_asked_and_the_next_start_evaluates_again(run_smoke, monkeypatch, tmp_path):
    stops = (*WITH_HOOK, "eval_failures=stop")
    with monkeypatch.context() as patch:
        patch.setattr(PicaBenchHook, "run", broken_at(4))
        with pytest.raises(RuntimeError, match="the judge has left"):
            run_smoke(*stops, name="failed")
    assert [path.name for path in (tmp_path / "failed" / "checkpoints").iterdir()] == ["step_00000004"]
    again = run_smoke(*stops, name="failed")
    assert [line["step"] for line in metrics_of(again) if "scenes/physics_acc" in line] == [0, 4, 8]
    assert json.loads((again / "summary.json").read_text())["failed_evaluations"] == []


def test_a_file_asks_the_run_to_save_and_go_on(run_smoke, monkeypatch, tmp_path):
    monkeypatch.setattr(signals_module, "_SECONDS_BETWEEN_LOOKS", 0.0)
    asked = tmp_path / "run" / "SAVE"
    folder = run_smoke(stop=AtStep(3, asked.touch))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_00000003", "step_00000008"]
    assert not asked.exists()


def test_a_file_asks_the_run_to_save_and_stop_but_not_the_next_start(run_smoke, monkeypatch, tmp_path):
    whole = run_smoke(name="whole")
    monkeypatch.setattr(signals_module, "_SECONDS_BETWEEN_LOOKS", 0.0)
    asked = tmp_path / "run" / "STOP"
    with pytest.raises(Stopped, match="step 3"):
        run_smoke(stop=AtStep(3, asked.touch))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_00000003"]
    asked.touch()  # late: the run has gone, and the next process starts after it
    os.utime(asked, (0, 0))
    assert adapter_bytes(run_smoke(), 8) == adapter_bytes(whole, 8)


def test_sigusr1_saves_and_goes_on(run_smoke):
    def run(flag: StopFlag) -> Path:
        at_step = AtStep(5, lambda: os.kill(os.getpid(), signal.SIGUSR1))

        def wanted(self) -> bool:
            return flag.save_is_asked

        AtStep.save_is_asked = property(wanted, lambda self, value: setattr(flag, "save_is_asked", value))
        try:
            return run_smoke(stop=at_step)
        finally:
            del AtStep.save_is_asked

    with stop_on_signal() as flag:
        folder = run(flag)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_00000005", "step_00000008"]


@pytest.mark.parametrize("scale", [float("nan"), 1e30], ids=["loss", "gradient alone"])
def test_nothing_is_updated_with_a_number_that_is_not_finite(run_smoke, monkeypatch, tmp_path, scale):
    kept = []
    fit, forward = sft.fit, loop.forward

    def spoilt(trainer, positioned):
        terms = forward(trainer, positioned)
        if positioned.positions[0] < 4 * 4:
            return terms
        return type(terms)(terms.loss * scale, terms.per_sample * scale, terms.sigma)

    monkeypatch.setattr(loop, "forward", spoilt)
    monkeypatch.setattr(sft, "fit", lambda trainer, *rest: (kept.append(trainer), fit(trainer, *rest)))
    with pytest.raises(NonFiniteLoss, match="of step 5 is"):
        run_smoke("checkpoint.every=1")
    saved = load_file(tmp_path / "run/checkpoints/step_00000004/adapter/pytorch_lora_weights.safetensors")
    for name, value in kept[0].engine.adapter().items():
        assert torch.equal(value, saved[f"transformer.{name}"]), name


def test_the_best_checkpoint_stays_when_newer_ones_push_out_the_others(run_smoke):
    evaluated = (*WITH_HOOK[:3], "eval_steps=[2,4,6]", "best_metric=scenes/psnr", "checkpoint.keep=1")
    folder = run_smoke(*evaluated, "optimizer.lr=0.05")
    best = json.loads((folder / "summary.json").read_text())["best"]
    assert (folder / best["checkpoint"] / "manifest.json").exists()
    assert len(list((folder / "checkpoints").iterdir())) <= 2


def test_every_checkpoint_is_copied_where_it_was_asked(run_smoke, tmp_path):
    folder = run_smoke("checkpoint.every=2", "checkpoint.keep=1", f"checkpoint.upload_to=file://{tmp_path}/copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [f"step_{n:08d}" for n in (2, 4, 6, 8)]
    for path in (tmp_path / "copy").iterdir():
        verify(path)
    assert [path.name for path in (folder / "checkpoints").iterdir()][-1:] == ["step_00000008"]


def test_a_run_whose_disk_was_full_goes_on_and_has_every_step_once(run_smoke, monkeypatch, tmp_path):
    often = ("log_every=1", "checkpoint.every=2", "num_steps=6")
    whole = run_smoke(*often, name="whole")
    line = (whole / "metrics.jsonl").read_text().index("\n")
    with monkeypatch.context() as patch:
        fill_disk(patch, "metrics.jsonl", 5 * line)
        with pytest.raises(RecordNotWritten, match=r"full/metrics\.jsonl could not take the numbers of step 5: .*28"):
            run_smoke(*often, name="full")
    assert [line["step"] for line in metrics_of(tmp_path / "full")] == [1, 2, 3, 4]
    again = run_smoke(*often, name="full")
    assert metrics_of(again) == metrics_of(whole)
    assert adapter_bytes(again, 6) == adapter_bytes(whole, 6)
