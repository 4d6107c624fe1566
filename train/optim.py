"""Learning-rate schedules as pure functions of the step, and the optimizer's construction."""

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim import Optimizer

from physedit.train.build import build, resolve_target
from physedit.train.config import ConfigError

ELEMENT_WISE = frozenset(
    {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop"}
)
"""Optimizers of torch that update each number from its own gradient and state alone. Source: torch.optim's pages."""
_PROBE_SHAPES = ((64, 80), (48, 32))
"""Ours: large enough that optimizers which pack their state (from 4096 numbers on, in bitsandbytes) do so."""
_PROBE_UPDATES = 3
_PROBE_LR = 1e-2
_PROBE_TOLERANCE = 1e-4
"""Of a movement, relative: float32 sums in another order are far below it, another update rule is far above."""


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

    On a GPU it is the fused form of its class, where it has one and ``node`` does not choose the form: one kernel in
    place of a dozen for each number, and no step of the run waits for the device before it.

    Raises:
        ConfigError: the class refuses a setting, or is no torch optimizer.
    """
    given = list(parameters)
    try:
        optimizer = build(node, params=given, **_form_of(node, given))
    except (ValueError, TypeError, RuntimeError) as error:  # the last for forms that exclude each other
        raise ConfigError(f"optimizer: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"optimizer._target_={node['_target_']} is no torch optimizer.")
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def _form_of(node: DictConfig, parameters: Sequence[Tensor]) -> dict[str, bool]:
    """Returns ``fused=True`` if that is to be added to the settings of ``node``."""
    kind = resolve_target(str(node["_target_"]))
    has_fused = kind.__module__.startswith("torch.optim.") and "fused" in inspect.signature(kind).parameters
    is_chosen = any(form in node for form in ("fused", "foreach", "capturable", "differentiable"))
    on_gpu = all(each.is_cuda and each.is_floating_point() for each in parameters)
    return {"fused": True} if has_fused and on_gpu and not is_chosen else {}


def check_optimizer(node: DictConfig) -> None:
    """Verifies the settings of ``node`` by making its optimizer over one number.

    Raises:
        ConfigError: as ``build_optimizer``.
    """
    with _without_compiler():
        build_optimizer(node, [nn.Parameter(torch.zeros(1, 1))])


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Within the context, making an optimizer does not import torch's compiler to tell it what not to compile.

    That is a second of CPU time, a fifth of what the slowest refusal took.
    Source: torch/_compile.py, ``_disable_dynamo``.
    """
    wrapped = Optimizer.add_param_group
    Optimizer.add_param_group = inspect.unwrap(wrapped)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.add_param_group = wrapped  # type: ignore[method-assign]


def check_element_wise(node: DictConfig) -> None:
    """Verifies that the optimizer of ``node`` works on a flat part of the adapter as on its matrices, as ZeRO needs.

    Optimizers of torch are known; another one is tried on a few numbers on the CPU.

    Raises:
        ConfigError: it does not.
    """
    target = resolve_target(str(node["_target_"]))
    if target.__module__.startswith("torch.optim.") and target.__name__ in ELEMENT_WISE:
        return
    reason = _whole_matrices_needed(node)
    if reason is not None:
        raise ConfigError(
            f"optimizer._target_={node['_target_']} cannot be used under ZeRO: {reason}. ZeRO cuts the adapter into "
            f"flat parts, so the optimizer must update each number by itself. Use one that does "
            f"({', '.join(sorted(ELEMENT_WISE))} of torch.optim), or launch=ddp, which keeps every matrix whole."
        )


def _whole_matrices_needed(node: DictConfig) -> str | None:
    """Returns why the optimizer cannot work on flat parts, or None if it can."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in _PROBE_SHAPES]
    gradients = [[torch.randn(shape, generator=generator) for shape in _PROBE_SHAPES] for _ in range(_PROBE_UPDATES)]
    flat = [torch.cat([value.flatten() for value in values]) for values in (start, *gradients)]
    try:
        parted, optimizer = _updated(node, flat[:1], [[gradient] for gradient in flat[1:]])
        whole, _ = _updated(node, start, gradients)
    except Exception as error:  # it is not ours, and may fail in any way
        return f"it could not be tried on a flat part ({type(error).__name__}: {error})"
    for name, value in optimizer.state[parted[0]].items():
        if isinstance(value, Tensor) and value.dim() and (value.shape, value.dtype) != (flat[0].shape, torch.float32):
            return f"its state {name} is not one float32 number for each of the adapter's"
    moved = parted[0].detach() - flat[0]
    expected = torch.cat([value.detach().flatten() for value in whole]) - flat[0]
    if float((moved - expected).norm()) > _PROBE_TOLERANCE * float(expected.norm()):
        return "it moves the numbers of a matrix otherwise than the same numbers in a row"
    return None


def _updated(
    node: DictConfig, start: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]
) -> tuple[list[nn.Parameter], Optimizer]:
    parameters = [nn.Parameter(value.clone()) for value in start]
    optimizer = build_optimizer(node, parameters)
    for group in optimizer.param_groups:
        group["lr"] = _PROBE_LR
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return parameters, optimizer


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """Sets every group's rate to its base rate times ``factor``."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def learning_rate(optimizer: Optimizer) -> float:
    """Returns the rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])
