"""The seam between the trainer and what it evaluates: a hook sees no trainer, optimizer or tracker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from physedit.models.backbone import Backbone


@dataclass(frozen=True)
class Cadence:
    """The steps at which something is due: 0 and the end if asked, a list, and every n steps.

    Attributes:
        at_start: before the first step (step 0: the base).
        steps: these steps.
        every: every so many steps; 0 means never.
        at_end: after the last step.
    """

    at_start: bool = True
    steps: tuple[int, ...] = ()
    every: int = 0
    at_end: bool = True

    def is_due(self, step: int, last_step: int) -> bool:
        """True if ``step`` of a run of ``last_step`` optimizer steps is due."""
        if step == 0:
            return self.at_start
        if step == last_step:
            return self.at_end or self._is_listed(step)
        return self._is_listed(step)

    def _is_listed(self, step: int) -> bool:
        return step in self.steps or (self.every > 0 and step % self.every == 0)


@dataclass(frozen=True)
class MetricValue:
    """A number with its standard error and the number of items behind it; ``value`` is None without items."""

    value: float | None
    standard_error: float | None
    n: int


@dataclass(frozen=True)
class MetricChange:
    """A metric of a checkpoint beside the base: ``ci95`` is the paired bootstrap interval of ``change``."""

    base: float | None
    tuned: float | None
    change: float | None
    ci95: tuple[float, float] | None
    n: int


@dataclass(frozen=True)
class EvalReport:
    """What a hook found at one step.

    Attributes:
        hook: the hook's name, the first part of every metric key.
        step: optimizer step of the evaluated adapter; 0 is the base.
        metrics: changes by stable key, such as ``scenes/physics_acc`` or ``picabench/acc/Reflection``.
        folder: where pictures, answers and ``report.json`` of this step lie.
        notes: sentences a reader must see beside the numbers, such as which judge answered.
        seconds: wall time of generating and judging.
    """

    hook: str
    step: int
    metrics: Mapping[str, MetricChange]
    folder: Path
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class EvalContext:
    """What a hook may use. Every rank gets one; items are dealt over ranks.

    Attributes:
        step: optimizer step of the adapter; 0 is the base.
        backbone: the editor.
        denoiser: the module to edit with; its adapter is what is evaluated.
        without_adapter: a context manager under which ``denoiser`` is the base.
        run_folder: the run's own folder; a hook writes below ``eval/NAME/``.
        base_cache: folder shared by runs that keeps base evaluations by fingerprint.
        rank, world_size: this process and how many there are.
        barrier: waits for all ranks; called by every rank.
        progress: called with (done, total, label) after every batch of edits.
    """

    step: int
    backbone: Backbone
    denoiser: nn.Module
    without_adapter: "Callable[[], WithoutAdapter]"
    run_folder: Path
    base_cache: Path
    rank: int = 0
    world_size: int = 1
    barrier: Callable[[], None] = field(default=lambda: None)
    progress: Callable[[int, int, str], None] = field(default=lambda _done, _total, _label: None)
    device: torch.device = field(default=torch.device("cpu"))


class WithoutAdapter(Protocol):
    """A context manager that turns the adapter off inside and on again after."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> object: ...


class EvalHook(Protocol):
    """Something to evaluate at set steps."""

    @property
    def name(self) -> str:
        """Names the hook's folder and the first part of its metric keys."""
        ...

    @property
    def cadence(self) -> Cadence:
        """When the trainer calls ``run``."""
        ...

    def check(self) -> None:
        """Verifies files and judge without loading a model.

        Raises:
            ValueError: something the hook needs is missing; one paragraph with path and remedy.
        """
        ...

    def run(self, context: EvalContext) -> EvalReport:
        """Evaluates; called on every rank, every rank gets the same report."""
        ...
