"""Learning-rate schedules as pure functions of the step, and the optimizer's construction."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from omegaconf import DictConfig
from torch import Tensor
from torch.optim import Optimizer

from physedit.train.build import build
from physedit.train.config import ConfigError


class Schedule(Protocol):
    """The factor on the base learning rate. A pure function of the step: resume and any number of ranks agree."""

    def factor(self, step: int, num_steps: int) -> float:
        """Returns the factor for the update that follows ``step`` finished updates of ``num_steps``."""
        ...


@dataclass(frozen=True)
class Constant:
    """Linear warm-up over ``warmup_steps`` updates, then 1."""

    warmup_steps: int = 0

    def factor(self, step: int, num_steps: int) -> float:  # noqa: ARG002 - the protocol's signature
        """Returns the warm-up share, then 1."""
        return _warmup(step, self.warmup_steps)


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up, then half a cosine from 1 towards ``final_fraction``, reached one update after the last."""

    warmup_steps: int = 0
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        _check_fraction(self.final_fraction)

    def factor(self, step: int, num_steps: int) -> float:
        """Returns the warm-up share, then the cosine."""
        if step < self.warmup_steps:
            return _warmup(step, self.warmup_steps)
        share = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        return self.final_fraction + (1.0 - self.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True)
class Linear:
    """Linear warm-up, then a straight line from 1 towards ``final_fraction``, reached one update after the last."""

    warmup_steps: int = 0
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        _check_fraction(self.final_fraction)

    def factor(self, step: int, num_steps: int) -> float:
        """Returns the warm-up share, then the line."""
        if step < self.warmup_steps:
            return _warmup(step, self.warmup_steps)
        share = (step - self.warmup_steps) / max(1, num_steps - self.warmup_steps)
        return 1.0 - (1.0 - self.final_fraction) * share


def _check_fraction(final_fraction: float) -> None:
    if not 0.0 <= final_fraction <= 1.0:
        raise ValueError(f"schedule.final_fraction={final_fraction} must lie in 0 to 1.")


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def build_optimizer(node: DictConfig, parameters: Iterable[Tensor]) -> Optimizer:
    """Builds the optimizer of ``node`` over ``parameters``.

    Raises:
        ConfigError: the class refuses a setting, or is no torch optimizer.
    """
    try:
        optimizer = build(node, params=list(parameters))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"optimizer: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"optimizer._target_={node['_target_']} is no torch optimizer.")
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Sets every group's rate to its base rate times ``factor``."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def learning_rate(optimizer: Optimizer) -> float:
    """Returns the rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])
