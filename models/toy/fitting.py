"""What both trainings of the toy editor share: the learning rate's course, averaged weights, snapshots."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

_EMA_DECAY = 0.999
_WARMUP_STEPS = 100
_COOLDOWN_SHARE = 0.35
_LOG_STEPS = 200
_SNAPSHOT_S = 240.0


@dataclass(frozen=True, slots=True)
class FitPlan:
    """How long and how fast: the rate rises over 100 steps, stays, and falls to zero over the last 35 %."""

    name: str
    num_steps: int
    peak_rate: float
    seed: int


def learning_rate(plan: FitPlan, step: int) -> float:
    """Returns the rate of step 0, 1, ...; a longer plan differs from a shorter one only where that one falls."""
    cooldown_steps = _COOLDOWN_SHARE * plan.num_steps
    rise = (step + 1) / _WARMUP_STEPS
    fall = (plan.num_steps - step) / cooldown_steps
    return plan.peak_rate * min(1.0, rise, fall)


def fit(
    plan: FitPlan,
    module: nn.Module,
    loss_of: Callable[[torch.Generator], Tensor],
    snapshot: Path,
) -> None:
    """Trains ``module`` in place and leaves it with its averaged weights, in evaluation mode.

    A step's draws come from (seed, step) alone, so that a fit goes on from a snapshot as if never stopped.

    Args:
        plan: the number of steps and their rate.
        module: every parameter of it trains.
        loss_of: draws a batch from the generator and returns its loss.
        snapshot: read if it exists, and rewritten every four minutes and at the end.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=plan.peak_rate, betas=(0.9, 0.99), weight_decay=0.0)
    average = {name: value.detach().clone() for name, value in module.named_parameters()}
    first_step = _restore(snapshot, module, optimizer, average)
    generator = torch.Generator()
    module.train()
    started = saved = time.monotonic()
    total = 0.0
    for step in range(first_step, plan.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, step)
        loss = loss_of(generator.manual_seed(plan.seed * 1_000_000_007 + step))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        _follow(average, module, step)
        total += loss.item()
        if (step + 1) % _LOG_STEPS == 0:
            pace_s = (time.monotonic() - started) / (step + 1 - first_step)
            logger.info("%s: step %d, loss %.5f, %.3f s a step", plan.name, step + 1, total / _LOG_STEPS, pace_s)
            total = 0.0
        if time.monotonic() - saved > _SNAPSHOT_S or step + 1 == plan.num_steps:
            _save(snapshot, module, optimizer, average, num_done=step + 1)
            saved = time.monotonic()
    module.load_state_dict(average, strict=False)
    module.eval()


def load_average(snapshot: Path, module: nn.Module) -> int:
    """Gives ``module`` the averaged weights of a snapshot and returns how many steps they were trained."""
    state = torch.load(snapshot, weights_only=True)
    module.load_state_dict(state["average"], strict=False)
    module.eval()
    num_done: int = state["num_done"]
    return num_done


def _follow(average: Mapping[str, Tensor], module: nn.Module, step: int) -> None:
    """Moves the average towards the weights; early on it forgets faster, so that it is never mostly noise."""
    decay = min(_EMA_DECAY, (step + 1) / (step + 10))
    weights = [value.detach() for _, value in module.named_parameters()]
    torch._foreach_lerp_(list(average.values()), weights, 1 - decay)


def _save(
    snapshot: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, Tensor],
    *,
    num_done: int,
) -> None:
    state = {
        "num_done": num_done,
        "weights": dict(module.named_parameters()),
        "average": dict(average),
        "optimizer": optimizer.state_dict(),
    }
    unfinished = snapshot.with_suffix(".part")
    torch.save(state, unfinished)
    unfinished.replace(snapshot)
    logger.info("saved %s after %d steps", snapshot, num_done)


def _restore(snapshot: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: Mapping[str, Tensor]) -> int:
    if not snapshot.exists():
        return 0
    state = torch.load(snapshot, weights_only=True)
    module.load_state_dict(state["weights"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    for name, value in average.items():
        value.copy_(state["average"][name])
    num_done: int = state["num_done"]
    return num_done
