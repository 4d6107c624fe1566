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
from torch import Tensor, nn
from torch.optim import Optimizer

from physedit.data_loaders.loader import PositionedBatch
from physedit.models.backbone import Backbone
from physedit.train.objective import LossTerms, Objective
from physedit.train.optim import Schedule, set_learning_rate
from physedit.train.rng import draw
from physedit.train.state import AdapterAverage, Progress, trainable

logger = logging.getLogger(__name__)


class NonFiniteLoss(RuntimeError):
    """A loss or gradient is NaN or infinite; the message names step and samples."""


class Stopped(Exception):
    """SIGTERM or SIGINT arrived: the run is saved and can be resumed."""


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

    def advance(self, step: int, num_samples: int) -> None:
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
    log_every: int
    max_grad_norm: float | None
    average: AdapterAverage | None
    recent: "deque[_Step]" = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Step:
    step: int
    sample_ids: tuple[str, ...]
    loss: Tensor
    grad_norm: Tensor


def fit(trainer: Trainer, events: Events, start: Progress) -> Progress:
    """Trains from ``start`` to the last step. All ranks call it.

    Raises:
        NonFiniteLoss: a loss or gradient is not finite; nothing after the last good checkpoint was saved.
        Stopped: a signal arrived; a checkpoint of the current step was written first.
    """
    progress, stepped_at = start, time.monotonic()
    saved_at = start.step
    events.evaluate(progress.step)
    batches = trainer.batches(progress.position)
    trainer.denoiser.train()
    while progress.step < trainer.num_steps:
        factor = trainer.schedule.factor(progress.step, trainer.num_steps)
        set_learning_rate(trainer.optimizer, factor)
        sample_ids, loss = accumulate(trainer, batches)
        grad_norm = clip(trainer)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        if trainer.average is not None:
            trainer.average.update(trainer.backbone.denoiser)

        step = progress.step + 1
        trainer.recent.append(_Step(step, sample_ids, loss, grad_norm))
        events.advance(step, trainer.global_batch)
        stopping = events.is_stopping()
        last = step == trainer.num_steps
        logs = step % trainer.log_every == 0 or last
        saves = events.save_is_due(step) or last or stopping
        progress = Progress(step, progress.position + trainer.global_batch, progress.window_loss, progress.window_steps)
        if logs or saves:
            progress = close_window(trainer, progress)
        if logs:
            metrics = {
                "train/loss": progress.window_loss / progress.window_steps,
                "train/grad_norm": float(grad_norm),
                "train/learning_rate": trainer.optimizer.param_groups[0]["lr"],
                "train/samples": float(progress.position),
            }
            num_samples = progress.window_steps * trainer.global_batch
            events.log(step, metrics, num_samples, time.monotonic() - stepped_at)
            progress, stepped_at = Progress(step, progress.position), time.monotonic()
        if saves:
            events.save(progress)
            saved_at = step
        if stopping:
            raise Stopped(f"Stopped at step {step}, saved.")
        paused_at = time.monotonic()
        events.evaluate(step)
        trainer.denoiser.train()
        stepped_at += time.monotonic() - paused_at
    assert saved_at == progress.step, "the last step is always saved"
    return progress


def accumulate(trainer: Trainer, batches: Iterator[PositionedBatch]) -> tuple[tuple[str, ...], Tensor]:
    """Adds up the gradients of one global batch; returns this rank's sample ids and its mean loss."""
    ids: list[str] = []
    total = torch.zeros((), device=trainer.accelerator.device)
    for micro_step in range(trainer.accumulation):
        positioned = next(batches)
        is_last = micro_step == trainer.accumulation - 1
        with nullcontext() if is_last else without_sync(trainer):
            terms = forward(trainer, positioned)
            trainer.accelerator.backward(terms.loss / trainer.accumulation)
        total += terms.loss.detach() / trainer.accumulation
        ids.extend(positioned.batch.sample_ids)
    return tuple(ids), total


def without_sync(trainer: Trainer) -> AbstractContextManager[object]:
    """Leaves gradients on this rank until the last micro batch of the step."""
    return trainer.accelerator.no_sync(trainer.denoiser)  # type: ignore[no-any-return]


def forward(trainer: Trainer, positioned: PositionedBatch) -> LossTerms:
    """Returns the loss of one micro batch; its noise depends on seed and positions alone."""
    conditioning = trainer.backbone.encode(positioned.batch)
    draws = draw(trainer.seed, positioned.positions, conditioning.target)
    return trainer.objective.loss(
        lambda noisy, sigma: trainer.backbone.velocity(trainer.denoiser, noisy, sigma, conditioning),
        conditioning,
        draws,
    )


def clip(trainer: Trainer) -> Tensor:
    """Clips the accumulated gradient once and returns its norm before clipping."""
    parameters = list(trainable(trainer.backbone.denoiser).values())
    limit = math.inf if trainer.max_grad_norm is None else trainer.max_grad_norm
    return nn.utils.clip_grad_norm_(parameters, limit)


def close_window(trainer: Trainer, progress: Progress) -> Progress:
    """Adds the steps since the last call to the logging window: the one place that waits for the device.

    Raises:
        NonFiniteLoss: on every rank, because the gradient norm is the same on all of them.
    """
    recent = list(trainer.recent)
    trainer.recent.clear()
    losses = trainer.accelerator.reduce(torch.stack([entry.loss for entry in recent]), reduction="mean")
    norms = torch.stack([entry.grad_norm.to(losses.device) for entry in recent])
    for entry, loss, norm in zip(recent, losses.tolist(), norms.tolist(), strict=True):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteLoss(
                f"The loss of step {entry.step} is {loss} and its gradient norm {norm}. Samples of this rank: "
                f"{', '.join(entry.sample_ids)}. Nothing was saved after it; the newest checkpoint is good. "
                f"Look at these pictures, lower optimizer.lr, or use backbone.dtype=float32."
            )
    return Progress(
        progress.step,
        progress.position,
        progress.window_loss + math.fsum(losses.tolist()),
        progress.window_steps + len(recent),
    )
