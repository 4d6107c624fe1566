"""The training loop: one page, top to bottom.

Shape legend: B micro batch, C latent channels, h w latent cells.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from physedit.data_loaders.loader import PositionedBatch
from physedit.data_loaders.sample import DroppedRow
from physedit.models.backbone import Backbone, conditioning_of
from physedit.train.dropped import DroppedRows
from physedit.train.engine import Engine
from physedit.train.objective import LossTerms, Objective
from physedit.train.optim import Schedule
from physedit.train.processes import Processes
from physedit.train.rng import draw, dropout_stream
from physedit.train.signals import Request, Stopped
from physedit.train.state import AdapterAverage, Progress

logger = logging.getLogger(__name__)

MOST_UNSEEN_STEPS = 50
"""Ours: the host looks at the losses of so many steps at the latest, however rarely it logs: a run that diverges wastes
no more. By default it logs, and waits for the device, at every tenth."""


class NonFiniteLoss(RuntimeError):
    """A loss or gradient is NaN or infinite; the message names step and samples."""


class Events(Protocol):
    """What the loop tells the rest of the run. Every rank calls every method."""

    def request(self) -> Request:
        """Returns what a signal or a file asks of the run; the same on every rank."""
        ...

    def save_is_due(self, step: int) -> bool:
        """True if a checkpoint of ``step`` is to be written, because of its cadence or of a hook's."""
        ...

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint."""
        ...

    def evaluate(self, step: int) -> None:
        """Runs the hooks that are due at ``step``."""
        ...

    def log(self, step: int, metrics: dict[str, float], num_samples: int, seconds: float) -> None:
        """Records the numbers of a step."""
        ...

    def advance(self, step: int) -> None:
        """Moves the progress bar."""
        ...


@dataclass
class Trainer:
    """Everything the loop uses, already built and placed."""

    accelerator: Accelerator
    processes: Processes
    backbone: Backbone
    engine: Engine
    objective: Objective
    schedule: Schedule
    batches: Callable[[int], Iterator[PositionedBatch]]
    """From a position of the run on: this rank's micro batches, in order."""
    num_steps: int
    global_batch: int
    accumulation: int
    seed: int
    has_dropout: bool
    log_every: int
    average: AdapterAverage | None
    dropped: DroppedRows
    recent: "deque[_Step]" = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Step:
    step: int
    share: "_Share"
    grad_norm: Tensor


@dataclass(frozen=True, slots=True)
class _Share:
    """What this rank did in a step."""

    sample_ids: tuple[str | None, ...]
    """None for a stand-in."""
    num_fitted: int
    dropped: tuple[DroppedRow, ...]
    loss: Tensor
    per_sample: Tensor
    """The loss of each of ``sample_ids``."""

    def not_finite(self) -> list[str]:
        """Returns the samples whose own loss is not finite; waits for the device."""
        is_finite = self.per_sample.isfinite().tolist()
        found = zip(self.sample_ids, is_finite, strict=True)
        return [name for name, is_good in found if name is not None and not is_good]


def fit(trainer: Trainer, events: Events, start: Progress) -> Progress:
    """Trains from ``start`` to the last step. All ranks call it.

    Raises:
        NonFiniteLoss: a loss or gradient is not finite; the adapter is as it was before that step. Where the engine
            does not wait for the device, it is raised where the window closes: with a line of metrics.jsonl or a
            checkpoint, and after ``MOST_UNSEEN_STEPS`` steps at the latest.
        TooManyDropped: more rows than the run allows cannot be used.
        Stopped: it was asked to; a checkpoint of the current step was written first.
    """
    progress, seconds, num_samples = start, 0.0, 0
    events.evaluate(progress.step)
    batches = trainer.batches(progress.position)
    while progress.step < trainer.num_steps:
        started = time.monotonic()
        if not trainer.backbone.denoiser.training:  # to say so takes longer than to ask, in thousands of modules
            trainer.engine.denoiser.train()
        trainer.engine.set_learning_rate(trainer.schedule.factor(progress.step, trainer.num_steps))
        share = accumulate(trainer, batches)
        progress = progress.after_step(trainer.global_batch)
        update(trainer, share, progress)

        num_samples += trainer.global_batch
        events.advance(progress.step)
        request = events.request()
        is_last = progress.step == trainer.num_steps
        logs = is_last or progress.step % trainer.log_every == 0
        saves = is_last or request > Request.NONE or events.save_is_due(progress.step)
        if logs or saves or len(trainer.recent) == MOST_UNSEEN_STEPS:
            progress = close_window(trainer, progress)
        seconds += time.monotonic() - started
        if logs:
            events.log(progress.step, numbers(trainer, progress), num_samples, seconds)
            progress, seconds, num_samples = progress.with_new_window(), 0.0, 0
        if saves:
            events.save(progress)
        if request is Request.STOP:
            raise Stopped(f"Stopped at step {progress.step}; a checkpoint of it is saved.")
        events.evaluate(progress.step)
    return progress


def accumulate(trainer: Trainer, batches: Iterator[PositionedBatch]) -> _Share:
    """Adds up the gradients of this rank's share of one global batch; its loss is a mean."""
    ids: list[str | None] = []
    dropped: list[DroppedRow] = []
    per_sample: list[Tensor] = []
    num_fitted = 0
    total = torch.zeros((), device=trainer.accelerator.device)
    for micro_step in range(trainer.accumulation):
        positioned = next(batches)
        is_last = micro_step == trainer.accumulation - 1
        with trainer.engine.accumulating(is_last=is_last):
            terms = forward(trainer, positioned)
            trainer.engine.backward(telling(terms.loss) / trainer.accumulation)
        total += terms.loss.detach() / trainer.accumulation
        batch = positioned.batch
        ids.extend(name if weight else None for name, weight in zip(batch.sample_ids, batch.weights, strict=True))
        per_sample.append(terms.per_sample.detach())
        dropped.extend(positioned.dropped)
        num_fitted += batch.num_targets_of_other_size
    return _Share(tuple(ids), num_fitted, tuple(dropped), total, torch.cat(per_sample))


def telling(loss: Tensor) -> Tensor:
    """Returns ``loss``, whose gradient is not a number where it is not finite, and else is its own, bit for bit.

    A square overflows long before its gradient does. Gradients are summed over ranks anyway, so that the norm tells
    every rank of every rank's loss, and no collective is needed for that.
    """
    return loss * (1.0 + 0.0 * loss.detach())


def update(trainer: Trainer, share: _Share, progress: Progress) -> None:
    """Clips the accumulated gradient once and updates once, adapter and average, but not with what is not finite.

    Where the engine leaves that to the device, the host does not wait for it: the window that closes next tells.

    Raises:
        NonFiniteLoss: on every rank, where the engine waits for the device.
    """
    refused = trainer.engine.refused
    if refused is None and trainer.processes.largest(int(not bool(share.loss.isfinite()))):
        grad_norm = torch.full_like(share.loss, math.nan)  # a step is not even tried
    else:
        grad_norm = trainer.engine.step()
    trainer.recent.append(_Step(progress.step, share, grad_norm))
    if refused is None and not bool(grad_norm.isfinite()):  # of the whole adapter, hence the same on every rank
        close_window(trainer, progress)
    if trainer.average is not None:
        trainer.average.update(trainer.engine.adapter(), refused)


def forward(trainer: Trainer, positioned: PositionedBatch) -> LossTerms:
    """Returns the loss of one micro batch; its noise and dropout depend on seed and positions alone."""
    conditioning = conditioning_of(trainer.backbone, positioned.batch, trainer.accelerator.device)
    draws = draw(trainer.seed, positioned.positions, conditioning.target)
    with dropping_out(trainer, positioned.positions[0]):
        terms = trainer.objective.loss(
            lambda noisy, sigma: trainer.backbone.velocity(trainer.engine.denoiser, noisy, sigma, conditioning),
            conditioning,
            draws,
        )
    return terms.weighted(positioned.batch.weights)


def dropping_out(trainer: Trainer, position: int) -> AbstractContextManager[None]:
    """Gives dropout its own random numbers; without dropout the generators are not touched."""
    return dropout_stream(trainer.seed, position, trainer.accelerator.device) if trainer.has_dropout else nullcontext()


def close_window(trainer: Trainer, progress: Progress) -> Progress:
    """Adds the steps since the last call to the logging window; waits for the device. All ranks call it.

    Nothing that the adapter or its average is needed for is done before the steps that made them are closed.

    Raises:
        NonFiniteLoss: on every rank, for the first step whose loss or gradient is not finite; the adapter is as it
            was before it, whatever came after.
        TooManyDropped: on every rank, because all of them know all dropped rows.
    """
    recent = list(trainer.recent)
    trainer.recent.clear()
    reduced = trainer.accelerator.reduce(torch.stack([entry.share.loss for entry in recent]), reduction="mean")
    losses: list[float] = reduced.tolist()
    norms: list[float] = torch.stack([entry.grad_norm for entry in recent]).tolist()
    for entry, loss, norm in zip(recent, losses, norms, strict=True):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise non_finite(entry, loss, norm)
    mine = [sum(entry.share.num_fitted for entry in recent), sum(len(entry.share.dropped) for entry in recent)]
    counts = trainer.accelerator.reduce(torch.tensor(mine, device=reduced.device), reduction="sum")
    num_fitted, num_dropped = map(int, counts.tolist())
    if num_dropped:
        trainer.dropped.add(gather_object([(entry.step, row) for entry in recent for row in entry.share.dropped]))
    return progress.with_losses(losses, norms[-1]).with_fitted(num_fitted)


def non_finite(entry: _Step, loss: float, grad_norm: float) -> NonFiniteLoss:
    """Returns the error that names step and samples of all ranks; all ranks call it."""
    named = ", ".join(gather_object(entry.share.not_finite())) or "none by itself"
    return NonFiniteLoss(
        f"The loss of step {entry.step} is {loss} and its gradient norm {grad_norm}. "
        f"Samples whose loss is not finite: {named}. Nothing was updated with it and nothing saved after it. Look at "
        f"their pictures and text; if there are many or none, lower optimizer.lr, or use backbone.dtype=float32."
    )


def numbers(trainer: Trainer, progress: Progress) -> dict[str, float]:
    """Returns a line of metrics.jsonl: the mean loss of the window, and the state of its last step."""
    return {
        "train/loss": progress.window_loss / progress.window_steps,
        "train/grad_norm": progress.grad_norm,
        "train/learning_rate": trainer.engine.learning_rate,
        "train/samples": float(progress.position),
        "train/fitted_targets": float(progress.num_fitted),
        "train/dropped": float(len(trainer.dropped)),
    }
