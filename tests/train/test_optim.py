"""Schedules are pure functions of the step."""

import math

import pytest
import torch

from physedit.train.optim import Constant, Cosine, Linear, set_learning_rate


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
