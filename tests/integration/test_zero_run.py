"""A whole run under ZeRO-3 on two CPU processes: average, evaluations, schedule and checkpoint as in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.support import spies
from tests.support.runs import metrics_of, smoke_overrides

MORE = (
    "eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=7", "eval.scenes.batch_size=1", "ema_decay=0.9",
    "schedule=cosine", "micro_batch=1", "max_grad_norm=0.02",
)  # fmt: skip


@pytest.fixture(scope="module")
def cut(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains under ZeRO-3 with spies and returns the run folder; ``spied`` lies beside it."""
    root = tmp_path_factory.mktemp("zero3")
    command = [str(Path(sys.executable).parent / "physedit"), "train", "launch=cpu_zero3"]
    given = smoke_overrides(world, root, "cut", (*MORE, *spies.OVERRIDES))
    environment = os.environ | spies.environment_of(root / "spied") | {
        "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
    }  # fmt: skip
    subprocess.run([*command, *given], check=True, env=environment, timeout=300, cwd=root)
    engine = json.loads((root / "cut" / "engine.json").read_text())
    assert (engine["distributed_type"], engine["wrapper"], engine["zero_stage"]) == ("DEEPSPEED", "DeepSpeedEngine", 3)
    assert (engine["persistence_threshold"], engine["num_whole"], engine["num_processes"]) == (0, 0, 2)
    return root / "cut"


@pytest.mark.slow
def test_c05_ranks_with_unequal_shares_of_an_evaluation_make_equally_many_forward_passes(cut: Path) -> None:
    """Seven items are four for one rank and three for the other, and each forward pass needs both."""
    passes = [spies.lines_of(cut.parent / "spied", rank, "trains") for rank in (0, 1)]
    assert passes[0] == passes[1]
    assert passes[0].count(True) == 8 * 2  # eight steps of two micro batches
    assert passes[0].count(False) == 2 * 4 * 2  # of the base and of the adapter, four items one by one, in two steps
    assert (cut / "summary.json").stat().st_mtime - (cut / "engine.json").stat().st_mtime < 60
    items = (cut / "eval/scenes/step_00000008/items.jsonl").read_text().splitlines()
    assert len({json.loads(line)["index"] for line in items}) == 7


@pytest.mark.slow
def test_a_run_under_zero3_trains_averages_and_saves_as_one_process_does(run_smoke, cut: Path):
    alone = run_smoke(*MORE, name="alone")
    engine = json.loads((cut / "engine.json").read_text())
    assert (engine["micro_batch"], engine["accumulation"], engine["global_batch"]) == (1, 2, 4)

    for one, two in zip(metrics_of(alone), metrics_of(cut), strict=True):
        assert one["step"] == two["step"]
        if "train/loss" in one:
            assert two["train/loss"] == pytest.approx(one["train/loss"], rel=1e-5)  # sums in another order
            assert two["train/learning_rate"] == one["train/learning_rate"]
            assert two["train/samples"] == one["train/samples"]
            # Of the gradient of both micro batches, before the one clipping that every step needs.
            assert two["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)
            assert one["train/grad_norm"] > 0.02
    adapter = "checkpoints/step_00000008/adapter/pytorch_lora_weights.safetensors"
    first, second = load_file(alone / adapter), load_file(cut / adapter)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert (value - second[name]).abs().max() < 1e-5, name  # Adam divides by tiny second moments in eight steps


@pytest.mark.slow
def test_a_run_moves_from_one_process_to_three_under_zero3_and_back(run_smoke, world: Path, tmp_path: Path):
    more = ("global_batch=12", "micro_batch=1", "ema_decay=0.9", "log_every=1")
    whole = run_smoke(*more, "num_steps=6", name="whole")
    run_smoke(*more, "num_steps=2", name="moved")
    command = [str(Path(sys.executable).parent / "physedit"), "train", "launch=cpu_zero3", "launch.num_processes=3"]
    given = smoke_overrides(world, tmp_path, "moved", (*more, "num_steps=4"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    subprocess.run([*command, *given], check=True, env=environment, timeout=300, cwd=tmp_path)
    engine = json.loads((tmp_path / "moved" / "engine.json").read_text())
    assert (engine["wrapper"], engine["zero_stage"], engine["num_processes"]) == ("DeepSpeedEngine", 3, 3)
    assert (engine["persistence_threshold"], engine["num_whole"]) == (0, 0)
    moved = run_smoke(*more, "num_steps=6", name="moved")
    for one, two in zip(metrics_of(whole), metrics_of(moved), strict=True):
        assert two["train/loss"] == pytest.approx(one["train/loss"], rel=0, abs=1e-6)  # seen: 1.2e-7
        assert two["train/samples"] == one["train/samples"]
