"""A checkpoint saved under any engine resumes under every other: one process, DDP, ZeRO-1, 2 and 3, and offload."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import matrix_worker
from tests.support.matrix_worker import END, MODES, SAVED
from torch import Tensor

from physedit.train.checkpoint import step_name

ROOT = Path(__file__).parents[2]
DDP = (
    "--multi_gpu",
    "--num_processes",
    "2",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
    "--dynamo_backend",
    "no",
)
ZERO = ("--config_file", "launch/accelerate/cpu_zero2.yaml")
FULL = [mode for mode, (_, dtype) in MODES.items() if dtype == "float32"]
ROUNDED = [mode for mode, (_, dtype) in MODES.items() if dtype == "bfloat16"]
ENGINES = {
    "single": ("NO", 1, "FluxTransformer2DModel", "AdamW", 0, ()),
    "ddp2": ("MULTI_CPU", 2, "DistributedDataParallel", "AdamW", 0, ()),
    "zero1x2": ("DEEPSPEED", 2, "DeepSpeedEngine", "DeepSpeedZeroOptimizer/AdamW", 1, ()),
    "zero2x2": ("DEEPSPEED", 2, "DeepSpeedEngine", "DeepSpeedZeroOptimizer/AdamW", 2, ()),
    "zero3x2": ("DEEPSPEED", 2, "DeepSpeedEngine", "DeepSpeedZeroOptimizer_Stage3/AdamW", 3, ()),
    "zero2x2_offload": ("DEEPSPEED", 2, "DeepSpeedEngine", "DeepSpeedZeroOptimizer/AdamW", 2, ("optimizer",)),
    "zero3x2_offload": ("DEEPSPEED", 2, "DeepSpeedEngine", "DeepSpeedZeroOptimizer_Stage3/AdamW", 3, ("optimizer",)),
}
# Seen: 1.2e-7 of losses near 1.2, one unit in the last place. Sums over ranks are ordered otherwise.
ACROSS_ENGINES = 1e-6
# Seen: 3.1e-4. Products of bfloat16 are rounded, and ZeRO-3 computes linear layers by a function of its own.
ACROSS_ENGINES_ROUNDED = 1e-3
# Seen: 1.5e-8 after seven steps of 1e-3.
ACROSS_ADAPTERS = 1e-6


@pytest.fixture(scope="module")
def matrix(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the three launches side by side, since they wait for each other's checkpoints; returns what they left."""
    folder = tmp_path_factory.mktemp("matrix")
    accelerate = [str(Path(sys.executable).parent / "accelerate"), "launch", "--main_process_port", "0"]
    worker = [str(Path(matrix_worker.__file__)), str(folder), str(world)]
    common = os.environ | {
        "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
    }  # fmt: skip
    on_cpu = {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu"}
    launches = {
        "single": ([sys.executable, *worker], {}),
        "ddp": ([*accelerate, *DDP, *worker], {"ACCELERATE_USE_CPU": "true"}),
        "zero": ([*accelerate, *ZERO, *worker], on_cpu),
    }
    logs = {name: (folder / f"{name}.log").open("w") for name in launches}
    running = {
        name: subprocess.Popen(command, env=common | more, cwd=ROOT, stdout=logs[name], stderr=subprocess.STDOUT)
        for name, (command, more) in launches.items()
    }
    codes = {name: process.wait(timeout=500) for name, process in running.items()}
    assert set(codes.values()) == {0}, {name: (folder / f"{name}.log").read_text()[-3000:] for name in codes}
    return folder


def record(matrix: Path, mode: str, source: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((matrix / f"{mode}.{source}.json").read_text())
    return found


def tensors(matrix: Path, mode: str, source: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(matrix / f"{mode}.{source}.pt")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", FULL)
def test_the_engine_that_was_asked_for_really_ran_with_the_runs_own_numbers(matrix: Path, mode: str) -> None:
    """C08."""
    engine = record(matrix, mode, "uninterrupted")["engine"]
    kind = ("distributed_type", "num_processes", "wrapper", "optimizer", "zero_stage")
    assert (*(engine[key] for key in kind), tuple(engine["offload"])) == ENGINES[mode]
    numbers = (engine["micro_batch"], engine["accumulation"], engine["global_batch"], engine["max_grad_norm"])
    assert numbers == (1, 4 // engine["num_processes"], 4, 0.02)
    is_cut = mode.startswith("zero3")
    assert engine["persistence_threshold"] == (0 if is_cut else None)
    assert (engine["num_whole"] == 0) == is_cut


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*FULL, *ROUNDED])
def test_the_same_engine_goes_on_bit_for_bit(matrix: Path, mode: str) -> None:
    whole, resumed = record(matrix, mode, "uninterrupted"), record(matrix, mode, mode)
    assert len(whole["losses"]) == END - SAVED
    assert (resumed["losses"], resumed["norms"]) == (whole["losses"], whole["norms"])
    assert resumed["digest"] == whole["digest"]  # adapter, average, moments, step counts


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "source"), [*product(FULL, FULL), *product(ROUNDED, ROUNDED)])
def test_what_is_restored_is_what_was_saved_bit_for_bit(matrix: Path, mode: str, source: str) -> None:
    assert record(matrix, mode, source)["restored"]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "source"), list(product(FULL, FULL)))
def test_another_engine_goes_on_with_the_same_losses(matrix: Path, mode: str, source: str) -> None:
    one, two = record(matrix, "single", "uninterrupted"), record(matrix, mode, source)
    assert two["losses"] == pytest.approx(one["losses"], rel=0, abs=ACROSS_ENGINES)
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-4)  # sums of squares in another order
    assert min(one["norms"]) > 0.02  # so that clipping is compared too
    first, second = tensors(matrix, "single", "uninterrupted"), tensors(matrix, mode, source)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert float((value - second[name]).abs().max()) < ACROSS_ADAPTERS, name


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "source"), list(product(ROUNDED, ROUNDED)))
def test_a_bfloat16_base_goes_on_with_nearly_the_same_losses(matrix: Path, mode: str, source: str) -> None:
    """D06: what trains stays float32."""
    one, two = record(matrix, "single_bf16", "uninterrupted"), record(matrix, mode, source)
    assert two["losses"] == pytest.approx(one["losses"], rel=ACROSS_ENGINES_ROUNDED)
    assert all(value.dtype == torch.float32 for value in tensors(matrix, mode, source).values())


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*FULL, *ROUNDED])
def test_a_checkpoint_is_the_adapter_and_its_moments_and_nothing_else(matrix: Path, mode: str) -> None:
    """D12."""
    folder = matrix / "saved" / mode / step_name(SAVED)
    saved = tensors(matrix, mode, "uninterrupted")
    adapter_bytes = sum(4 * value.numel() for name, value in saved.items() if name.startswith("adapter/"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size <= 4.1 * adapter_bytes + 1_000_000  # the run keeps an average, which is one adapter more than 3.1
    assert all(value.numel() > 0 and value.norm() > 0 for value in saved.values())  # C03, C17


@pytest.mark.slow
@pytest.mark.parametrize("mode", FULL)
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_number_that_is_not_finite_stops_all_ranks_before_the_update(matrix: Path, mode: str, kind: str) -> None:
    found = json.loads((matrix / f"{mode}.spoilt.json").read_text())
    assert f"of step {END + 1} is" in found[kind]
    assert ("none by itself" in found[kind]) == (kind == "gradient")
    assert found[f"{kind} unchanged"]
