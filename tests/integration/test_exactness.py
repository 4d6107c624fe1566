"""What a run computes depends on neither a stop, a split of its batches nor an evaluation; a bad sample is named."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support.runs import StopAtOnce, metrics_of

from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Conditioning
from physedit.train import loop
from physedit.train.loop import NonFiniteLoss, Stopped
from physedit.train.objective import Draws

ADAPTER = "adapter/pytorch_lora_weights.safetensors"
EVERY_STEP = ("log_every=1", "checkpoint.every=1", "checkpoint.keep=8")
Run = Callable[..., Path]


@dataclass
class Learnt:
    """What reached the objective, a line for each micro batch: samples, noise levels and noise."""

    lines: list[tuple[tuple[str, ...], tuple[float, ...], str]] = field(default_factory=list)


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> Learnt:
    """Records the batches of every run of the test, one after the other."""
    kept, ids = Learnt(), []
    condition, draw = loop.conditioning_of, loop.draw

    def seen(backbone: Any, batch: EditBatch, device: torch.device) -> Conditioning:
        ids.append(batch.sample_ids)
        return condition(backbone, batch, device)

    def drawn(seed: int, positions: Any, like: torch.Tensor) -> Draws:
        draws = draw(seed, positions, like)
        noise = hashlib.sha256(draws.noise.numpy().tobytes()).hexdigest()
        kept.lines.append((ids[-1], tuple(draws.normal.tolist()), noise))
        return draws

    monkeypatch.setattr(loop, "conditioning_of", seen)
    monkeypatch.setattr(loop, "draw", drawn)
    return kept


def checkpoint(run: Path, step: int) -> dict[str, bytes]:
    """Returns the files of a checkpoint but its manifest, which names them, and the config, which names the run."""
    folder = run / "checkpoints" / f"step_{step:08d}"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files.keys() == {ADAPTER, "optimizer.safetensors", "run_state.json", "config.yaml", "manifest.json"}
    del files["manifest.json"], files["config.yaml"]
    return files


def test_an_evaluation_changes_no_sample_level_noise_or_loss_that_follows(run_smoke: Run, learnt: Learnt) -> None:
    settings = ("num_steps=6", "log_every=1", "adapter.dropout=0.1")
    without = run_smoke(*settings, name="without")
    plain = list(learnt.lines)
    learnt.lines.clear()
    hook = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=4", "eval_steps=[3]")
    evaluated = run_smoke(*settings, *hook, name="with")
    assert [line["step"] for line in metrics_of(evaluated) if "scenes/physics_acc" in line] == [0, 3, 6]
    assert len(plain) == 6 * 2
    assert len(set(plain)) == len(plain)
    assert learnt.lines == plain
    assert [line for line in metrics_of(evaluated) if "train/loss" in line] == metrics_of(without)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_resumed_run_has_every_byte_of_the_uninterrupted_one(run_smoke: Run, learnt: Learnt, schedule: str) -> None:
    settings = (*EVERY_STEP, f"schedule={schedule}", "num_steps=6", "ema_decay=0.9")
    whole = run_smoke(*settings, name="whole")
    plain = list(learnt.lines)
    learnt.lines.clear()
    with pytest.raises(Stopped):
        run_smoke(*settings, name="stopped", stop=StopAtOnce())
    stopped_at = len(learnt.lines) // 2
    assert 0 < stopped_at < 6
    resumed = run_smoke(*settings, name="stopped")
    assert learnt.lines == plain  # no sample is left out or repeated, and each has its own level and noise
    steps = [line["step"] for line in metrics_of(resumed)]
    assert steps == list(range(1, 7))
    assert metrics_of(resumed) == metrics_of(whole)  # losses, norms and learning rates
    for step in range(1, 7):
        assert checkpoint(resumed, step) == checkpoint(whole, step), step


def test_accumulated_batches_give_the_weights_of_one_batch(run_smoke: Run) -> None:
    whole = run_smoke("micro_batch=4", name="whole")
    for micro_batch in (1, 2):
        split = run_smoke(f"micro_batch={micro_batch}", name=f"split_{micro_batch}")
        one, other = (load_file(run / "checkpoints/step_00000008" / ADAPTER) for run in (whole, split))
        assert one.keys() == other.keys()
        # Seen: 3e-6. Eight steps of 1e-3 move a weight by up to 8e-3; Adam divides by small second moments.
        difference = max(float((value - other[name]).abs().max()) for name, value in one.items())
        assert 0 < difference < 2e-5


def test_a_sample_that_is_not_a_number_is_named_and_the_last_good_checkpoint_stays(
    run_smoke: Run, learnt: Learnt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clean = run_smoke(*EVERY_STEP, name="clean")
    bad = learnt.lines[2 * 4 + 1][0][1]  # second sample of the second micro batch of step 5
    assert sum(bad in ids for ids, _, _ in learnt.lines) == 1
    others = {name for ids, _, _ in learnt.lines for name in ids} - {bad}
    condition = loop.conditioning_of

    def spoilt(backbone: Any, batch: EditBatch, device: torch.device) -> Conditioning:
        found = condition(backbone, batch, device)
        target = found.target.clone()
        for row, name in enumerate(batch.sample_ids):
            if name == bad:
                target[row, 0, 0, 0] = torch.nan
        return replace(found, target=target)

    monkeypatch.setattr(loop, "conditioning_of", spoilt)
    with pytest.raises(NonFiniteLoss, match=rf"step 5 is nan .* not finite: {re.escape(bad)}\. Nothing was") as error:
        run_smoke(*EVERY_STEP, name="spoilt")
    assert not any(re.search(rf"{re.escape(name)}\b", str(error.value)) for name in others)
    folders = sorted(path.name for path in (tmp_path / "spoilt" / "checkpoints").iterdir())
    assert folders == [f"step_{step:08d}" for step in range(1, 5)]
    assert checkpoint(tmp_path / "spoilt", 4) == checkpoint(clean, 4)
    for name in folders:
        for part in (ADAPTER, "optimizer.safetensors"):
            tensors = load_file(tmp_path / "spoilt" / "checkpoints" / name / part)
            assert all(value.isfinite().all() for value in tensors.values()), name


def test_the_first_batch_is_drawn_once_and_not_by_a_resumed_run(run_smoke: Run, tmp_path: Path) -> None:
    picture = tmp_path / "run" / "first_batch.png"
    with pytest.raises(Stopped):
        run_smoke(stop=StopAtOnce())
    assert picture.stat().st_size > 1000
    picture.unlink()
    run_smoke()
    assert not picture.exists()
