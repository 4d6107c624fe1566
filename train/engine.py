"""The seam between the loop and what moves gradients between processes: one process, DDP, or DeepSpeed's ZeRO."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from physedit.models.lora import adapter_state, load_state, swapped
from physedit.train.optim import learning_rate, set_learning_rate
from physedit.train.state import optimizer_tensors, restore_optimizer, trainable


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Which engine really runs, read from its objects and not from what was asked for; ``engine.json``.

    Attributes:
        distributed_type: of the launch, in accelerate's words.
        num_processes: of the launch.
        wrapper: class around the denoiser.
        optimizer: class that updates, with its wrapper's in front.
        zero_stage: of DeepSpeed's ZeRO; 0 without it.
        offload: what DeepSpeed keeps in the machine's memory, such as ``optimizer``.
        persistence_threshold: of ZeRO-3, in elements: smaller parameters stay whole on every rank.
        num_whole: elements of the adapter that lie whole on a rank between steps; under ZeRO-3 none need to.
        micro_batch: samples of a process at once.
        accumulation: micro batches of a step.
        global_batch: samples of a step.
        max_grad_norm: at which the gradient is clipped; None for no clipping.
    """

    distributed_type: str
    num_processes: int
    wrapper: str
    optimizer: str
    zero_stage: int
    offload: tuple[str, ...]
    persistence_threshold: int | None
    num_whole: int
    micro_batch: int
    accumulation: int
    global_batch: int
    max_grad_norm: float | None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The run's batch arithmetic and clipping, which every engine must follow.

    Attributes:
        micro_batch: samples of a process at once.
        accumulation: micro batches of a step.
        global_batch: samples of a step over all processes.
        max_grad_norm: at which the accumulated gradient is clipped; None for no clipping.
    """

    micro_batch: int
    accumulation: int
    global_batch: int
    max_grad_norm: float | None


class Engine(Protocol):
    """Holds the wrapped denoiser and the optimizer. Every rank calls every method, in the same order."""

    @property
    def denoiser(self) -> nn.Module:
        """The wrapped denoiser, to train with."""
        ...

    @property
    def passes_take_all_ranks(self) -> bool:
        """True if the denoiser is cut over the ranks: each of its forward passes, wrapped or bare, needs them all."""
        ...

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        ...

    def set_learning_rate(self, factor: float) -> None:
        """Sets every rate to its base rate times ``factor``."""
        ...

    def accumulating(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Within the context, forward and backward of one micro batch of a step; ``is_last`` if no other follows."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of ``loss``, which is divided by the accumulation already."""
        ...

    def step(self) -> Tensor:
        """Clips the accumulated gradient once, updates once, clears it; returns the norm before clipping.

        The norm is that of the whole adapter, the same on every rank. With one that is not finite nothing is updated;
        if ``refused`` is a number, nothing after it either.
        """
        ...

    @property
    def refused(self) -> Tensor | None:
        """1 on the device from the first update that was not made because of its norm, 0 before; float32.

        None where ``step`` waits for the device, so that its norm can be looked at without further cost.
        """
        ...

    def adapter(self) -> dict[str, Tensor]:
        """Returns the whole adapter, float32: views of it, or copies where it is cut over the ranks."""
        ...

    def load_adapter(self, values: Mapping[str, Tensor]) -> None:
        """Puts ``values`` in place of the adapter.

        Raises:
            ValueError: names or shapes are another adapter's.
        """
        ...

    def swapped(self, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Within the context the adapter has ``values``; no update may be made."""
        ...

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Returns the whole optimizer state as ``PARAMETER/FIELD`` on the CPU, the same from every engine.

        Empty on the ranks that do not write checkpoints.
        """
        ...

    def restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what any engine's ``optimizer_tensors`` returned, on every rank; rates are left alone.

        Raises:
            ConfigError: it is the state of another adapter or optimizer.
        """
        ...

    def facts(self) -> EngineFacts:
        """Returns what runs."""
        ...


class PlainEngine:
    """One process, or DDP: every rank holds the whole adapter and the whole optimizer state."""

    def __init__(self, accelerator: Accelerator, bare: nn.Module, optimizer: Optimizer, arithmetic: Arithmetic) -> None:
        """Wraps ``bare``, whose adapter is in place and on its device."""
        self._accelerator = accelerator
        self._bare = bare
        self._denoiser = accelerator.prepare_model(bare) if accelerator.num_processes > 1 else bare
        self._optimizer = optimizer
        self._parameters = list(trainable(bare).values())
        self._refused = _refusal_of(optimizer, self._parameters[0].device)
        self._arithmetic = arithmetic

    @property
    def denoiser(self) -> nn.Module:
        """The denoiser, in DDP if there are other processes."""
        return self._denoiser

    @property
    def passes_take_all_ranks(self) -> bool:
        """False: the denoiser is whole on every rank."""
        return False

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return learning_rate(self._optimizer)

    def set_learning_rate(self, factor: float) -> None:
        """Sets every group's rate."""
        set_learning_rate(self._optimizer, factor)

    def accumulating(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Leaves gradients on this rank until the last micro batch of the step."""
        if is_last:
            return nullcontext()
        return self._accelerator.no_sync(self._denoiser)  # type: ignore[no-any-return]

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of ``loss``."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> Tensor:
        """Clips, updates and clears; waits for the device only if the optimizer cannot leave an update out there."""
        limit = self._arithmetic.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self._parameters, math.inf if limit is None else limit)
        if self._refused is not None:
            # It stays 1, so that the adapter is what it was before the first update that was not made.
            torch.maximum(self._refused, norm.isfinite().logical_not().float(), out=self._refused)
        if self._refused is not None or bool(norm.isfinite()):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    @property
    def refused(self) -> Tensor | None:
        """A number if the optimizer is a fused one of torch."""
        return self._refused

    def adapter(self) -> dict[str, Tensor]:
        """Returns views of the adapter."""
        return adapter_state(self._bare)

    def load_adapter(self, values: Mapping[str, Tensor]) -> None:
        """Copies ``values`` into the adapter."""
        load_state(self._bare, values)

    def swapped(self, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Copies ``values`` into the adapter, and its own values back afterwards."""
        return swapped(self._bare, values)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Returns the state on rank 0; no other rank is needed."""
        return optimizer_tensors(self._bare, self._optimizer) if self._accelerator.is_main_process else {}

    def restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts the state back."""
        restore_optimizer(self._bare, self._optimizer, tensors)

    def facts(self) -> EngineFacts:
        """Returns what runs."""
        return EngineFacts(
            distributed_type=str(self._accelerator.distributed_type.value),
            num_processes=self._accelerator.num_processes,
            wrapper=type(self._denoiser).__name__,
            optimizer=type(self._optimizer).__name__,
            zero_stage=0,
            offload=(),
            persistence_threshold=None,
            num_whole=sum(value.numel() for value in self.adapter().values()),
            micro_batch=self._arithmetic.micro_batch,
            accumulation=self._arithmetic.accumulation,
            global_batch=self._arithmetic.global_batch,
            max_grad_norm=self._arithmetic.max_grad_norm,
        )


def _refusal_of(optimizer: Optimizer, device: torch.device) -> Tensor | None:
    """Returns the number by which ``optimizer`` is told on the device to leave updates out; None if it does not listen.

    Source: torch.amp.GradScaler, which tells fused optimizers so of gradients that have overflowed.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return None
    refused = torch.zeros((), device=device)
    optimizer.found_inf = refused  # type: ignore[attr-defined]
    return refused
