"""The plain engine's step: clipped once, and not made with a gradient that is not finite."""

import pytest
import torch
from accelerate import Accelerator

from physedit.train.config import ConfigError
from physedit.train.engine import Arithmetic, PlainEngine
from physedit.train.state import trainable
from physedit.train.zero import config_of

ARITHMETIC = Arithmetic(micro_batch=2, accumulation=3, global_batch=24, max_grad_norm=0.5)


def engine_of(editor) -> PlainEngine:
    optimizer = torch.optim.SGD(trainable(editor.denoiser).values(), lr=1.0)
    return PlainEngine(Accelerator(cpu=True), editor.denoiser, optimizer, ARITHMETIC)


def give_gradient(editor, value: float) -> None:
    for parameter in trainable(editor.denoiser).values():
        parameter.grad = torch.full_like(parameter, value)


def test_a_step_moves_by_the_clipped_gradient_and_tells_the_norm_before(editor):
    engine = engine_of(editor)
    before = {name: value.clone() for name, value in engine.adapter().items()}
    give_gradient(editor, 1.0)
    norm = engine.step()
    count = sum(value.numel() for value in before.values())
    assert float(norm) == pytest.approx(count**0.5)
    moved = sum(float(((value - before[name]) ** 2).sum()) for name, value in engine.adapter().items()) ** 0.5
    assert moved == pytest.approx(0.5, rel=1e-4)
    assert all(parameter.grad is None for parameter in trainable(editor.denoiser).values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(editor, value):
    engine = engine_of(editor)
    before = {name: item.clone() for name, item in engine.adapter().items()}
    give_gradient(editor, value)
    assert not engine.step().isfinite()
    assert all(torch.equal(item, before[name]) for name, item in engine.adapter().items())


def test_deepspeeds_config_has_the_runs_numbers_whatever_it_said():
    """C08 and C13."""
    given = {
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        "gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 9.0,
        "bf16": {"enabled": True},
    }  # fmt: skip
    config = config_of(given, ARITHMETIC, num_processes=4)
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (24, 2)
    assert (config["gradient_accumulation_steps"], config["gradient_clipping"]) == (3, 0.5)
    assert config["zero_optimization"] == {"stage": 3}
    assert config["bf16"] == config["fp16"] == {"enabled": False}
    assert given["zero_optimization"]["reduce_bucket_size"] == "auto"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"zero_optimization": {"stage": 0}}, "stage 0"),
        ({}, "stage None"),
        ({"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam"}}, "sets optimizer"),
    ],
)
def test_a_deepspeed_config_that_contradicts_the_run_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        config_of(given, ARITHMETIC, num_processes=4)
