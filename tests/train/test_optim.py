"""Schedules are pure functions of the step."""

import math
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

from physedit.train import optim
from physedit.train.build import EXTRA_PACKAGES_VARIABLE
from physedit.train.config import ConfigError
from physedit.train.optim import (
    ELEMENT_WISE,
    Constant,
    Cosine,
    Linear,
    build_optimizer,
    check_element_wise,
    check_optimizer,
    set_learning_rate,
)


class Lion(torch.optim.Optimizer):
    """An element-wise optimizer that is not torch's."""

    def __init__(self, params, lr=1e-4):
        super().__init__(params, {"lr": lr})

    def direction(self, momentum):
        return momentum.sign()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 0.1)
                parameter.sub_(group["lr"] * self.direction(momentum))


class Lamb(Lion):
    """Scales the movement of each tensor by its norm."""

    def direction(self, momentum):
        return momentum / momentum.norm()


class Packed(Lion):
    """Keeps its state in fewer bits."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["packed"] = parameter.grad.to(torch.uint8)


@pytest.mark.parametrize("schedule", [Constant(4), Cosine(4, 0.1), Linear(4, 0.1)])
def test_warm_up_rises_in_equal_steps_to_one(schedule):
    assert [schedule.factor(step, 20) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_cosine_and_linear_end_where_they_say():
    assert Cosine(0, 0.1).factor(0, 10) == 1.0
    assert Cosine(0, 0.1).factor(5, 10) == pytest.approx(0.1 + 0.9 * 0.5)
    assert Cosine(0, 0.1).factor(10, 10) == pytest.approx(0.1)
    assert Linear(0, 0.1).factor(5, 10) == pytest.approx(0.55)
    assert Constant(0).factor(9, 10) == 1.0


def test_cosine_after_warm_up_follows_the_formula():
    for step in range(4, 20):
        expected = 0.5 * (1 + math.cos(math.pi * (step - 4) / 16))
        assert Cosine(4).factor(step, 20) == pytest.approx(expected)


def test_the_rate_is_the_base_rate_times_the_factor_however_often_it_is_set():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    optimizer.param_groups[0]["base_lr"] = 0.5
    for factor in (0.1, 1.0, 0.3):
        set_learning_rate(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * factor)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"_target_": "torch.optim.AdamW", "lr": -1}, "Invalid learning rate: -1"),
        ({"_target_": "torch.optim.AdamW", "lr": 1e-3, "betas": [0.9, 2]}, "Invalid beta parameter at index 1: 2"),
        ({"_target_": "torch.optim.AdamW", "lr": 1e-3, "fused": True, "foreach": True}, "cannot be `True` together"),
        ({"_target_": "torch.optim.SGD", "lr": 1e-3, "nesterov": True}, "Nesterov momentum requires a momentum"),
        ({"_target_": "torch.optim.SGD", "lr": 1e-3, "speed": 1}, "unexpected keyword argument 'speed'"),
    ],
)
def test_the_check_refuses_what_building_refuses_in_the_same_words(settings, said):
    for act in (check_optimizer, lambda node: build_optimizer(node, [torch.nn.Parameter(torch.zeros(2))])):
        with pytest.raises(ConfigError, match=said):
            act(OmegaConf.create(settings))


@pytest.mark.parametrize("name", [*sorted(ELEMENT_WISE), "Adafactor", "Muon", "LBFGS", "SparseAdam"])
def test_the_check_takes_every_optimizer_of_torch_and_leaves_the_class_as_it_was(name):
    before = torch.optim.Optimizer.add_param_group
    check_optimizer(OmegaConf.create({"_target_": f"torch.optim.{name}", "lr": 1e-3}))
    assert torch.optim.Optimizer.add_param_group is before


def test_the_check_does_not_wait_for_the_import_of_torchs_compiler():
    code = (
        "import sys; from omegaconf import OmegaConf; from physedit.train.optim import check_optimizer;"
        "check_optimizer(OmegaConf.create({'_target_': 'torch.optim.AdamW', 'lr': 1e-3}));"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["AdamW", "SGD", "NAdam"])
def test_zero_takes_optimizers_that_are_known_to_work_element_by_element(name):
    assert name in ELEMENT_WISE
    check_element_wise(OmegaConf.create({"_target_": f"torch.optim.{name}", "lr": 1e-3, "capturable": True}))


@pytest.mark.parametrize("name", sorted(ELEMENT_WISE))
def test_what_is_known_holds_when_it_is_tried(name, monkeypatch):
    monkeypatch.setattr(optim, "ELEMENT_WISE", frozenset())
    check_element_wise(OmegaConf.create({"_target_": f"torch.optim.{name}", "lr": 1e-3}))


def test_an_optimizer_of_others_is_tried(monkeypatch):
    monkeypatch.setenv(EXTRA_PACKAGES_VARIABLE, __name__.split(".")[0])
    check_element_wise(OmegaConf.create({"_target_": f"{__name__}.Lion"}))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("torch.optim.Adafactor", "otherwise than the same numbers in a row"),
        ("torch.optim.Muon", "could not be tried on a flat part"),
        ("torch.optim.LBFGS", "could not be tried on a flat part"),
        (f"{__name__}.Lamb", "otherwise than the same numbers in a row"),
        (f"{__name__}.Packed", "its state packed is not one float32 number"),
    ],
)
def test_zero_refuses_optimizers_that_need_whole_matrices(target, said, monkeypatch):
    monkeypatch.setenv(EXTRA_PACKAGES_VARIABLE, __name__.split(".")[0])
    with pytest.raises(ConfigError, match=said) as refusal:
        check_element_wise(OmegaConf.create({"_target_": target}))
    assert "launch=ddp" in str(refusal.value)
