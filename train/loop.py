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
from torch import Tensor, nn
from torch.optim import Optimizer

from physedit.data_loaders.loader import PositionedBatch
from physedit.data_loaders.sample import DroppedRow
from physedit.models.backbone import Backbone, conditioning_of
from physedit.train.dropped import DroppedRows
from physedit.train.objective import LossTerms, Objective
from physedit.train.optim import Schedule, set_learning_rate
from physedit.train.rng import draw, dropout_stream
from physedit.train.state import AdapterAverage, Progress, trainable

logger = logging.getLogger(__name__)


class NonFiniteLoss(RuntimeError):
    """A loss or gradient is NaN or infinite; the message names step and samples."""


class Stopped(BaseException):
    """SIGTERM or SIGINT arrived: the run is saved and can be resumed. As KeyboardInterrupt, it is no error to catch."""


class Events(Protocol):
    """What the loop tells the rest of the run. Every rank calls every method."""

    def is_stopping(self) -> bool:
        """True once a signal asked the process to stop."""
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
    backbone: Backbone
    denoiser: nn.Module
    objective: Objective
    optimizer: Optimizer
    schedule: Schedule
    batches: Callable[[int], Iterator[PositionedBatch]]
    """From a position of the run on: this rank's micro batches, in order."""
    num_steps: int
    global_batch: int
    accumulation: int
    seed: int
    has_dropout: bool
    log_every: int
    max_grad_norm: float | None
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
        NonFiniteLoss: a loss or gradient is not finite; nothing after the last good checkpoint was saved.
        TooManyDropped: more rows than the run allows cannot be used.
        Stopped: a signal arrived; a checkpoint of the current step was written first.
    """
    progress, seconds, num_samples = start, 0.0, 0
    events.evaluate(progress.step)
    batches = trainer.batches(progress.position)
    while progress.step < trainer.num_steps:
        started = time.monotonic()
        trainer.denoiser.train()
        set_learning_rate(trainer.optimizer, trainer.schedule.factor(progress.step, trainer.num_steps))
        share = accumulate(trainer, batches)
        grad_norm = clip(trainer)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        if trainer.average is not None:
            trainer.average.update(trainer.backbone.denoiser)

        progress = progress.after_step(trainer.global_batch)
        num_samples += trainer.global_batch
        trainer.recent.append(_Step(progress.step, share, grad_norm))
        events.advance(progress.step)
        stops = events.is_stopping()
        is_last = progress.step == trainer.num_steps
        logs = is_last or progress.step % trainer.log_every == 0
        saves = is_last or stops or events.save_is_due(progress.step)
        if logs or saves:
            progress = close_window(trainer, progress)
        seconds += time.monotonic() - started
        if logs:
            events.log(progress.step, numbers(trainer, progress), num_samples, seconds)
            progress, seconds, num_samples = progress.with_new_window(), 0.0, 0
        if saves:
            events.save(progress)
        if stops:
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
        with nullcontext() if is_last else without_sync(trainer):
            terms = forward(trainer, positioned)
            trainer.accelerator.backward(terms.loss / trainer.accumulation)
        total += terms.loss.detach() / trainer.accumulation
        batch = positioned.batch
        ids.extend(name if weight else None for name, weight in zip(batch.sample_ids, batch.weights, strict=True))
        per_sample.append(terms.per_sample.detach())
        dropped.extend(positioned.dropped)
        num_fitted += batch.num_targets_of_other_size
    return _Share(tuple(ids), num_fitted, tuple(dropped), total, torch.cat(per_sample))


def without_sync(trainer: Trainer) -> AbstractContextManager[object]:
    """Leaves gradients on this rank until the last micro batch of the step."""
    return trainer.accelerator.no_sync(trainer.denoiser)  # type: ignore[no-any-return]


def forward(trainer: Trainer, positioned: PositionedBatch) -> LossTerms:
    """Returns the loss of one micro batch; its noise and dropout depend on seed and positions alone."""
    conditioning = conditioning_of(trainer.backbone, positioned.batch, trainer.accelerator.device)
    draws = draw(trainer.seed, positioned.positions, conditioning.target)
    with dropping_out(trainer, positioned.positions[0]):
        terms = trainer.objective.loss(
            lambda noisy, sigma: trainer.backbone.velocity(trainer.denoiser, noisy, sigma, conditioning),
            conditioning,
            draws,
        )
    return terms.weighted(positioned.batch.weights)


def dropping_out(trainer: Trainer, position: int) -> AbstractContextManager[None]:
    """Gives dropout its own random numbers; without dropout the generators are not touched."""
    return dropout_stream(trainer.seed, position, trainer.accelerator.device) if trainer.has_dropout else nullcontext()


def clip(trainer: Trainer) -> Tensor:
    """Clips the accumulated gradient once and returns its norm before clipping."""
    parameters = list(trainable(trainer.backbone.denoiser).values())
    limit = math.inf if trainer.max_grad_norm is None else trainer.max_grad_norm
    return nn.utils.clip_grad_norm_(parameters, limit)


def close_window(trainer: Trainer, progress: Progress) -> Progress:
    """Adds the steps since the last call to the logging window: the one place that waits for the device.

    Raises:
        NonFiniteLoss: on every rank, because the gradient norm is the same on all of them.
        TooManyDropped: on every rank, because all of them know all dropped rows.
    """
    recent = list(trainer.recent)
    trainer.recent.clear()
    losses = trainer.accelerator.reduce(torch.stack([entry.share.loss for entry in recent]), reduction="mean")
    mine = [sum(entry.share.num_fitted for entry in recent), sum(len(entry.share.dropped) for entry in recent)]
    counts = trainer.accelerator.reduce(torch.tensor(mine, device=losses.device), reduction="sum")
    num_fitted, num_dropped = map(int, counts.tolist())
    if num_dropped:
        trainer.dropped.add(gather_object([(entry.step, row) for entry in recent for row in entry.share.dropped]))
    norms = torch.stack([entry.grad_norm.to(losses.device) for entry in recent])
    for entry, loss, norm in zip(recent, losses.tolist(), norms.tolist(), strict=True):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            named = ", ".join(gather_object(entry.share.not_finite())) or "none by itself"
            raise NonFiniteLoss(
                f"The loss of step {entry.step} is {loss} and its gradient norm {norm}. Samples whose loss is not "
                f"finite: {named}. Nothing was saved after it. Look at their pictures and text; if there are many or "
                f"none, lower optimizer.lr, or use backbone.dtype=float32."
            )
    return progress.with_losses(losses.tolist(), norms.tolist()[-1]).with_fitted(num_fitted)


def numbers(trainer: Trainer, progress: Progress) -> dict[str, float]:
    """Returns a line of metrics.jsonl: the mean loss of the window, and the state of its last step."""
    return {
        "train/loss": progress.window_loss / progress.window_steps,
        "train/grad_norm": progress.grad_norm,
        "train/learning_rate": float(trainer.optimizer.param_groups[0]["lr"]),
        "train/samples": float(progress.position),
        "train/fitted_targets": float(progress.num_fitted),
        "train/dropped": float(len(trainer.dropped)),
    }
