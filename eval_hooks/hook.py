"""The seam between the trainer and what it evaluates: a hook sees no trainer, optimizer or tracker."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

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
class Flips:
    """Questions whose answer changed sides: ``gained`` went from wrong to right, ``lost`` from right to wrong."""

    gained: int
    lost: int


@dataclass(frozen=True)
class EvalReport:
    """What a hook found at one step.

    Attributes:
        hook: the hook's name, the first part of every metric key.
        step: optimizer step of the evaluated adapter; 0 is the base.
        metrics: changes by stable key, such as ``scenes/physics_acc`` or ``picabench/acc/Reflection``.
        folder: where pictures, answers and ``report.json`` of this step lie.
        notes: sentences a reader must see beside the numbers, such as which judge answered.
        seconds: wall time of generating and judging; no part of what makes two reports equal.
        flips: by the keys of the accuracies in ``metrics``.
        input_copy: what the unchanged inputs get, by the keys of ``metrics``; empty if they were not evaluated. A
            judge or metric that rewards doing nothing shows here.
        lower_is_better: keys of ``metrics`` that are the better the lower they are, such as losses.
        num_questions: how many questions the judge had about the base, this step and the unchanged inputs.
        num_unscored: those of them that it has not answered because it left; the numbers are of the rest.
    """

    hook: str
    step: int
    metrics: Mapping[str, MetricChange]
    folder: Path
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    flips: Mapping[str, Flips] = field(default_factory=dict)
    input_copy: Mapping[str, MetricValue] = field(default_factory=dict)
    lower_is_better: frozenset[str] = frozenset()
    num_questions: int = 0
    num_unscored: int = 0

    @property
    def is_whole(self) -> bool:
        """True if no question is left for the judge."""
        return self.num_unscored == 0


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
        device: where the denoiser lies.
        adapter_id: tells the adapter from others, by its weights (``weights_digest``) and what else makes its edits;
            equal on every rank. Edits made by another are never taken for this one's. Empty if unknown: then no earlier
            edit is reused.
        adapter_file: the adapter on disk, as diffusers LoRA safetensors, for programs of their own; None for the base.
    """

    step: int
    backbone: Backbone
    denoiser: nn.Module
    without_adapter: Callable[[], AbstractContextManager[object]]
    run_folder: Path
    base_cache: Path
    rank: int = 0
    world_size: int = 1
    barrier: Callable[[], None] = field(default=lambda: None)
    progress: Callable[[int, int, str], None] = field(default=lambda _done, _total, _label: None)
    device: torch.device = field(default=torch.device("cpu"))
    adapter_id: str = ""
    adapter_file: Path | None = None


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

    def finished_reports(self, run_folder: Path, last_step: int) -> Sequence[EvalReport]:
        """Returns the reports of steps up to ``last_step`` that an earlier start of this run has written.

        Those made with other settings than the hook's present ones are left out: they measure something else.
        """
        ...

    def run(self, context: EvalContext) -> EvalReport:
        """Evaluates; called on every rank, every rank gets the same report."""
        ...


@dataclass(frozen=True)
class LateContext:
    """What a hook may use to judge and measure what it made earlier: files alone, in one process.

    Attributes:
        step: of the evaluation; 0 is the base.
        run_folder: where ``eval/NAME/`` lies.
        base_cache: as in ``EvalContext``.
        progress: called with (done, total, label) after every answer; what it raises ends the call.
    """

    step: int
    run_folder: Path
    base_cache: Path
    progress: Callable[[int, int, str], None] = field(default=lambda _done, _total, _label: None)


@runtime_checkable
class LateHook(Protocol):
    """A hook that can judge later, without a model: beside training, or after it."""

    @property
    def name(self) -> str:
        """As in ``EvalHook``."""
        ...

    @property
    def is_background(self) -> bool:
        """True if the trainer is to call ``generate`` in place of ``run``, and ``finish`` beside training."""
        ...

    def generate(self, context: EvalContext) -> None:
        """Makes what is to be judged; called on every rank. ``finish`` may be at work on earlier steps meanwhile."""
        ...

    def pending(self, run_folder: Path, last_step: int) -> Sequence[int]:
        """Returns the steps up to ``last_step``, in order, whose pictures are made, but not all judged and reported."""
        ...

    def finish(self, context: LateContext) -> EvalReport:
        """Judges, measures and reports what was made at a step; a thread may call it.

        Raises:
            ValueError: nothing was made, or something else than the hook asks for.
        """
        ...

    def stop(self) -> None:
        """Has ``finish`` come to its end soon, from another thread, because the process ends; it is not called again.

        What is answered until then is kept.
        """
        ...


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Returns the SHA-256 of names, shapes, dtypes and values, independent of order and device."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(values.shape)} {values.dtype}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
