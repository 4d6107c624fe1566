"""What a run counts: updates, micro batches, samples and epochs, its learning rate and the names of its files."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file
from tests.support.encoded import some_pairs, write_pairs
from tests.support.runs import StopAfter, metrics_of

from physedit.eval_hooks.files import file_digest, read_json
from physedit.train import loop, sft
from physedit.train.config import ConfigError
from physedit.train.engine import PlainEngine
from physedit.train.loop import Stopped

Run = Callable[..., Path]
ADAPTER = "adapter/pytorch_lora_weights.safetensors"


@dataclass
class Fed:
    """What the loop did since ``clear``: positions and samples of each micro batch, and the updates."""

    positions: list[tuple[int, ...]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    num_updates: int = 0

    def clear(self) -> None:
        self.positions, self.ids, self.num_updates = [], [], 0


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> Fed:
    found, forward, step = Fed(), loop.forward, PlainEngine.step

    def seen(trainer: Any, positioned: Any) -> Any:
        found.positions.append(positioned.positions)
        found.ids.extend(positioned.batch.sample_ids)
        return forward(trainer, positioned)

    def counted(engine: PlainEngine) -> Any:
        found.num_updates += 1
        return step(engine)

    monkeypatch.setattr(loop, "forward", seen)
    monkeypatch.setattr(PlainEngine, "step", counted)
    return found


def steps_of(folder: Path) -> list[int]:
    return [line["step"] for line in metrics_of(folder)]


def checkpoints_of(folder: Path) -> dict[str, dict[str, str]]:
    """Returns the digests of the files of each checkpoint."""
    return {
        path.name: {str(file.relative_to(path)): file_digest(file) for file in path.rglob("*") if file.is_file()}
        for path in (folder / "checkpoints").iterdir()
    }


@pytest.mark.parametrize("accumulation", [4, 1])
def test_d01_a_resume_keeps_updates_and_batches_apart(run_smoke: Run, fed: Fed, accumulation: int) -> None:
    micro_batch = 4 // accumulation
    more = ("num_steps=30", "log_every=1", f"micro_batch={micro_batch}")
    with pytest.raises(Stopped, match=r"step 10\b"):
        run_smoke(*more, stop=StopAfter(10))
    assert (fed.num_updates, len(fed.positions)) == (10, 10 * accumulation)
    fed.clear()
    folder = run_smoke(*more)
    assert fed.num_updates == 20
    assert fed.positions[0][0] == 10 * accumulation * micro_batch  # so many batches are skipped
    assert len(fed.positions) == 20 * accumulation
    assert steps_of(folder) == list(range(1, 31))
    assert read_json(folder / "checkpoints/step_00000030/run_state.json")["progress"]["step"] == 30


@pytest.mark.parametrize("num_workers", [0, 2])
def test_d02_a_run_stopped_in_a_later_epoch_sees_every_sample_once_an_epoch(
    run_smoke: Run, fed: Fed, num_workers: int
) -> None:
    """Epochs are of 8 batches; it stops after batch 3 of epoch 1, and ends with epoch 2."""
    more = ("data.limit=32", "num_steps=24", f"num_workers={num_workers}")
    run_smoke(*more, name="whole")
    whole = list(fed.ids)
    fed.clear()
    with pytest.raises(Stopped):
        run_smoke(*more, name="stopped", stop=StopAfter(8 + 3))
    stopped = list(fed.ids)
    fed.clear()
    run_smoke(*more, name="stopped")
    assert len(stopped) == 11 * 4
    assert (stopped, fed.ids) == (whole[: 11 * 4], whole[11 * 4 :])
    epochs = [whole[start : start + 32] for start in range(0, 96, 32)]
    assert [len(set(epoch)) for epoch in epochs] == [32, 32, 32]
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_d04_every_counter_goes_on_after_a_resume(run_smoke: Run, fed: Fed) -> None:
    """An epoch is of four updates, so that update 7 is the third of epoch 1."""
    more = ("data.limit=16", "num_steps=12", "log_every=1", "schedule=cosine", "schedule.warmup_steps=2")
    whole = run_smoke(*more, name="whole")
    ids = list(fed.ids)
    with pytest.raises(Stopped):
        run_smoke(*more, stop=StopAfter(7))
    saved = read_json(sorted((whole.parent / "run" / "checkpoints").iterdir())[0] / "run_state.json")["progress"]
    assert (saved["step"], saved["position"]) == (7, 28)
    fed.clear()
    resumed = run_smoke(*more)
    assert [path[0] for path in fed.positions][::2] == list(range(28, 48, 4))
    assert fed.ids == ids[28:]
    assert len(set(ids[16:28] + fed.ids[:4])) == 16  # epoch 1, before and after
    lines = metrics_of(resumed)
    assert lines == metrics_of(whole)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["train/samples"] for line in lines] == [4.0 * step for step in range(1, 13)]
    rates = [line["train/learning_rate"] for line in lines]
    cosine = [0.5e-3 * (1 + math.cos(math.pi * (step - 2) / 10)) for step in range(2, 12)]
    assert rates == pytest.approx([0.5e-3, 1e-3, *cosine])
    assert sorted(checkpoints_of(resumed)) == ["step_00000007", "step_00000012"]


@pytest.mark.parametrize("stops_at", [7, 12], ids=["stopped", "finished"])
@pytest.mark.parametrize("num_pairs", [6, 12])
def test_d04_data_of_another_size_is_refused_and_never_ends_without_a_step(
    run_smoke: Run, fed: Fed, tmp_path: Path, num_pairs: int, stops_at: int
) -> None:
    more = (
        "data=pairs", f"data.path={tmp_path / 'data'}", "data.source=before", "data.target=after",
        "data.instruction=text", "num_steps=12", "log_every=1",
    )  # fmt: skip
    write_pairs(tmp_path / "data", some_pairs(8))
    with pytest.raises(Stopped):
        run_smoke(*more, stop=StopAfter(stops_at))
    before = checkpoints_of(tmp_path / "run")
    fed.clear()
    shutil.move(tmp_path / "data", tmp_path / "first")
    write_pairs(tmp_path / "data", some_pairs(num_pairs))
    with pytest.raises(ConfigError, match=rf"other samples than it began with \(.*rows_in_use was 8, is {num_pairs}"):
        run_smoke(*more)
    assert fed.num_updates == 0
    assert checkpoints_of(tmp_path / "run") == before
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "first", tmp_path / "data")
    assert steps_of(run_smoke(*more)) == list(range(1, 13))
    assert fed.num_updates == 12 - stops_at


def test_d11_names_go_on_after_a_resume_and_older_checkpoints_stay_as_they_are(run_smoke: Run, tmp_path: Path) -> None:
    more = ("checkpoint.every=1", "checkpoint.keep=20")
    with pytest.raises(Stopped):
        run_smoke(*more, stop=StopAfter(5))
    before = checkpoints_of(tmp_path / "run")
    assert sorted(before) == [f"step_{step:08d}" for step in range(1, 6)]
    after = checkpoints_of(run_smoke(*more))
    assert sorted(after) == [f"step_{step:08d}" for step in range(1, 9)]
    assert {name: after[name] for name in before} == before
    assert len({files[ADAPTER] for files in after.values()}) == 8


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_c09_the_rate_follows_the_update_whatever_the_number_of_processes(
    run_smoke: Run, monkeypatch: pytest.MonkeyPatch, schedule: str, accumulation: int
) -> None:
    """A schedule that is prepared for four processes would go four times as fast."""
    fit = sft.fit

    def fit_as_one_of_four(trainer: Any, *rest: Any) -> Any:
        with monkeypatch.context() as patch:
            for state in (PartialState, AcceleratorState):
                patch.setitem(state._shared_state, "num_processes", 4)
            assert trainer.accelerator.num_processes == 4
            return fit(trainer, *rest)

    monkeypatch.setattr(sft, "fit", fit_as_one_of_four)
    more = (f"schedule={schedule}", "schedule.warmup_steps=3", "log_every=1", f"micro_batch={4 // accumulation}")
    lines = metrics_of(run_smoke(*more))
    after = {
        "constant": lambda share: 1.0,
        "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
        "linear": lambda share: 1 - share,
    }[schedule]
    expected = [1e-3 * (step + 1) / 3 for step in range(3)] + [1e-3 * after((step - 3) / 5) for step in range(3, 8)]
    assert [line["train/learning_rate"] for line in lines] == pytest.approx(expected)


@pytest.mark.parametrize(
    "optimizer",
    [
        ("optimizer._target_=torch.optim.SGD", "~optimizer.betas", "~optimizer.eps", "optimizer.lr=0.1"),
        ("optimizer._target_=torch.optim.AdamW", "optimizer.lr=1e-3"),
    ],
    ids=["SGD", "AdamW"],
)
def test_c10_four_accumulated_batches_are_one_batch_of_four(run_smoke: Run, optimizer: tuple[str, ...]) -> None:
    """Of the second of two updates, so that a gradient that is not cleared in time would count too."""
    runs = (run_smoke(*optimizer, "num_steps=2", f"micro_batch={size}", name=f"micro_{size}") for size in (4, 1))
    one, four = (load_file(run / "checkpoints/step_00000002" / ADAPTER) for run in runs)
    assert one.keys() == four.keys()
    assert max(float(value.abs().max()) for name, value in one.items() if "lora_B" in name) > 5e-4
    assert max(float((value - four[name]).abs().max()) for name, value in one.items()) < 1e-6
