"""The adapter that two processes train, with DDP, ZeRO-2 and ZeRO-3, is the one that a single process trains."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support import zero_worker
from tests.support.zero_worker import EDITORS, GLOBAL_BATCH, MAX_GRAD_NORM, NUM_STEPS, RECORD, SETTINGS, environment_of
from torch import Tensor

from physedit.models import flux_pipeline, qwen_pipeline
from physedit.models.adapter_file import ADAPTER_FILE, read_adapter
from physedit.models.backbone import Backbone
from physedit.models.lora import adapter_state, add_adapter, load_state

LAUNCH = (
    "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
    "--dynamo_backend", "no", "--main_process_port", "0",
)  # fmt: skip
ENGINES = {
    "ddp": ("MULTI_CPU", "DistributedDataParallel", None),
    "zero2": ("DEEPSPEED", "DeepSpeedEngine", "DeepSpeedZeroOptimizer"),
    "zero3": ("DEEPSPEED", "DeepSpeedEngine", "DeepSpeedZeroOptimizer_Stage3"),
}
# Seen: 3e-6. Sums over a batch of two are ordered otherwise than over one of four, and Adam divides by small second
# moments. Four steps of 1e-3 move a weight by up to 4e-3, so another sample or another clipping is far above it.
ACROSS_BATCHES = 1e-5
# Seen: 2e-8 between launches that compute the same batches.
ACROSS_LAUNCHES = 1e-6

STOCK: dict[str, Callable[[], Any]] = {
    "flux_kontext": lambda: flux_pipeline.load_pipeline("random_tiny", torch.float32),
    "qwen_image_edit": lambda: qwen_pipeline.load_pipeline("QwenImageEditPipeline", "random_tiny", torch.float32),
}
SAID = "said.txt"
Run = Callable[[str], Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns a function that trains under a mode, once, and returns the folder with what it left."""

    @cache
    def trained(mode: str) -> Path:
        folder = tmp_path_factory.mktemp(mode)
        worker = [str(Path(zero_worker.__file__)), mode, str(folder)]
        tools = Path(sys.executable).parent
        command = [sys.executable, *worker] if mode == "single" else [str(tools / "accelerate"), *LAUNCH, *worker]
        environment = os.environ | environment_of(mode, folder / "extensions")
        done = subprocess.run(
            command, env=environment, cwd=folder, timeout=300, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        (folder / SAID).write_text(done.stdout + done.stderr)
        return folder

    return trained


def record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / RECORD).read_text())
    return found


def adapter_of(folder: Path, editor: str) -> dict[str, Tensor]:
    return load_file(folder / editor / ADAPTER_FILE)


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ENGINES)
def test_the_engine_that_was_asked_for_really_ran(run: Run, mode: str) -> None:
    record = record_of(run(mode))
    distributed_type, kind, optimizer = ENGINES[mode]
    assert (record["distributed_type"], record["num_processes"]) == (distributed_type, 2)
    assert record["engines"].keys() == EDITORS.keys()
    for engine in record["engines"].values():
        assert engine["kind"] == kind
        assert (engine["num_whole"] == 0) == (mode == "zero3")
        if optimizer is not None:
            assert engine["optimizer"] == optimizer
            assert engine["stage"] == zero_worker.ZERO_STAGES[mode]
            assert mode != "zero3" or engine["persistence_threshold"] == 0
            assert (engine["steps"], engine["accumulation"], engine["train_batch"]) == (NUM_STEPS, 1, GLOBAL_BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("editor", EDITORS)
def test_under_zero3_the_base_is_never_whole_on_a_device(run: Run, editor: str) -> None:
    """It is cut parameter by parameter as it goes there; then nothing is left that a move could take."""
    moves = record_of(run("zero3"))["moves"][editor]
    assert moves["sent"] == moves["all"] > 10_000
    assert moves["most_whole"] == moves["largest"] < moves["all"] // 4
    assert moves["moved"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", zero_worker.ZERO_STAGES)
def test_no_start_ends_with_a_warning_of_torch(run: Run, mode: str) -> None:
    assert "FutureWarning" not in (run(mode) / SAID).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("mode", ENGINES)
def test_two_processes_give_the_adapter_of_one(run: Run, mode: str, editor: str) -> None:
    alone, together = run("single"), run(mode)
    assert largest_difference(adapter_of(alone, editor), adapter_of(together, editor)) < ACROSS_BATCHES
    one, two = record_of(alone), record_of(together)
    assert two["losses"][editor] == pytest.approx(one["losses"][editor], rel=1e-5)  # sums in another order
    assert two["norms"][editor] == pytest.approx(one["norms"][editor], rel=1e-4)  # likewise, squared
    assert min(one["norms"][editor]) > MAX_GRAD_NORM  # so that clipping is compared too


@pytest.mark.slow
@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("mode", zero_worker.ZERO_STAGES)
def test_zero_gives_the_adapter_of_ddp(run: Run, mode: str, editor: str) -> None:
    assert largest_difference(adapter_of(run("ddp"), editor), adapter_of(run(mode), editor)) < ACROSS_LAUNCHES


@pytest.mark.slow
@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("mode", ENGINES)
def test_c03_no_saved_tensor_is_empty_or_zero(run: Run, mode: str, editor: str) -> None:
    backbone: Backbone = EDITORS[editor]()
    add_adapter(backbone.denoiser, SETTINGS, targets=backbone.lora_presets["attention_mlp"], seed=0)
    live = adapter_state(backbone.denoiser)
    saved = read_adapter(run(mode) / editor)
    assert {name: value.shape for name, value in saved.items()} == {name: value.shape for name, value in live.items()}
    assert all(value.norm() > 0 for value in saved.values())
    load_state(backbone.denoiser, saved)
    assert all(torch.equal(value, saved[name]) for name, value in live.items())


@pytest.mark.slow
@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("mode", ENGINES)
def test_c03_the_stock_pipeline_takes_every_tensor_that_a_wrapped_model_saved(run: Run, mode: str, editor: str) -> None:
    folder = run(mode) / editor
    stock = STOCK[editor]()
    stock.load_lora_weights(str(folder), adapter_name="default")
    saved = load_file(folder / ADAPTER_FILE)
    loaded = adapter_state(stock.transformer)
    assert {f"transformer.{name}" for name in loaded} == saved.keys()
    assert all(torch.equal(value, saved[f"transformer.{name}"]) for name, value in loaded.items())


@pytest.mark.slow
@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("mode", ENGINES)
def test_c17_the_saved_adapter_is_the_live_one_and_predicts_what_it_did(run: Run, mode: str, editor: str) -> None:
    folder, live = run(mode) / editor, record_of(run(mode))["live"][editor]
    saved = read_adapter(folder)
    assert {name: float(value.norm()) for name, value in saved.items()} == pytest.approx(live, rel=1e-6)
    assert min(norm for name, norm in live.items() if "lora_B" in name) > 1e-4  # five steps of 1e-3
    backbone = EDITORS[editor]()
    base = zero_worker.probe(backbone, backbone.denoiser)
    add_adapter(backbone.denoiser, SETTINGS, targets=backbone.lora_presets["attention_mlp"], seed=0)
    load_state(backbone.denoiser, saved)
    predicted, trained = zero_worker.probe(backbone, backbone.denoiser), torch.load(folder / zero_worker.VELOCITY)
    moved = float((trained - base).abs().max())
    assert float((predicted - trained).abs().max()) < 1e-3 * moved
