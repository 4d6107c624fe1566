"""What one training step of an editor keeps and computes, traced operator by operator on the meta device.

Only a few blocks of the denoiser are traced, which stand for the others; see ``shallow``.

Shape legend: B batch, C latent channels, h w latent cells, T text tokens, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from physedit.models.blocks import checked_checkpointing
from physedit.models.estimating.architectures import Architecture
from physedit.models.estimating.shallow import Group, shallow
from physedit.models.estimating.tracker import LiveBytes, fused_attention
from physedit.models.latents import pack, token_positions, unpack
from physedit.models.lora import LoraSettings
from physedit.models.lora_targets import matching_layers
from physedit.models.sizes import PictureSizes


@dataclass(frozen=True, slots=True)
class Workload:
    """What a process sends through the denoiser at once, and how.

    Attributes:
        micro_batch: samples.
        sizes: of the pictures, in pixels.
        num_sources: pictures to edit from.
        text_tokens: of an instruction, with the pictures that the text encoder sees.
        has_mask: the instructions of a micro batch are unlike in length, and the denoiser is told.
        dtype: of the base.
        gradient_checkpointing: blocks are computed again in the backward pass; or n, the first of every n of them.
        gradients_wait: gradients of the adapter lie there before the step, from a micro batch before.
    """

    micro_batch: int
    sizes: PictureSizes
    num_sources: int
    text_tokens: int
    has_mask: bool
    dtype: torch.dtype
    gradient_checkpointing: bool | int
    gradients_wait: bool


@dataclass(frozen=True, slots=True)
class AdapterCount:
    """Size of an adapter: its layers, its numbers, and the numbers of its largest matrix."""

    num_layers: int
    num_parameters: int
    largest: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a micro batch takes beside base, adapter and gradients that wait.

    Attributes:
        saved: bytes that wait for the backward pass when the loss is there.
        peak: most bytes at once; gradients of the adapter are among them unless they wait.
        flops: floating point operations, forward and backward, recomputation included.
        slow_flops: those of them in float32: the adapter's.
        num_tokens: of a sample: pictures' and text's.
    """

    saved: int
    peak: int
    flops: int
    slow_flops: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place: operators so far, and their floating point operations."""

    operators: int
    flops: int
    slow_flops: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stretch of the timeline, from where it starts: the peak above, the change at its end, the operations."""

    peak: int
    change: int
    flops: int
    slow_flops: int


def count_adapter(denoiser: nn.Module, targets: Sequence[str], settings: LoraSettings) -> AdapterCount:
    """Returns the size of the adapter that ``lora.add_adapter`` would add.

    Raises:
        ValueError: a target that matches no linear layer.
    """
    layers = [denoiser.get_submodule(name) for name in matching_layers(denoiser, targets)]
    sides = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    magnitudes = sum(out for _, out in sides) if settings.use_dora else 0
    return AdapterCount(
        num_layers=len(sides),
        num_parameters=settings.rank * sum(map(sum, sides)) + magnitudes,
        largest=settings.rank * max(map(max, sides)),
    )


def trace_step(
    architecture: Architecture, targets: Sequence[str], settings: LoraSettings, workload: Workload
) -> StepCost:
    """Returns what a micro batch takes, from conditioning that is there to the adapter's gradients.

    Raises:
        ValueError: a target that matches no linear layer, or a share of blocks to recompute that is none.
    """
    every = checked_checkpointing(workload.gradient_checkpointing)
    traced = shallow(architecture.denoiser, targets, settings, workload.dtype, every=every)
    trainable = [each for each in traced.denoiser.parameters() if each.requires_grad]
    if workload.gradients_wait:
        for each in trainable:
            each.grad = torch.empty_like(each)
    counter = LiveBytes()
    counter.leave_out(_resting(traced.denoiser))
    counter.leave_out(each.grad for each in trainable if each.grad is not None)
    marks = _Marks(counter, traced.groups)
    with fused_attention(counter), counter:
        loss, num_tokens = _loss(architecture, traced.denoiser, workload)
        marks.end_forward()
        loss.backward()  # type: ignore[no-untyped-call]
    return _composed(marks, [group.count for group in traced.groups], num_tokens)


class _Marks:
    """Where in the timeline each group of blocks begins, forward and backward."""

    def __init__(self, counter: LiveBytes, groups: Sequence[Group]) -> None:
        self.counter = counter
        self.forward: list[_Mark] = []
        self.backward: dict[int, _Mark] = {}
        self.loss = _Mark(0, 0, 0)
        self._is_forward = True
        for number, group in enumerate(groups):
            group.blocks[0].register_forward_pre_hook(self._begin)
            group.blocks[-1].register_forward_hook(partial(self._watch, number))

    def here(self) -> _Mark:
        return _Mark(len(self.counter.timeline), self.counter.flops, self.counter.slow_flops)

    def end_forward(self) -> None:
        self.loss = self.here()
        self._is_forward = False

    def _begin(self, _block: nn.Module, _inputs: object) -> None:
        if self._is_forward:  # blocks run again in the backward pass
            self.forward.append(self.here())

    def _watch(self, number: int, _block: nn.Module, _inputs: object, output: Any) -> None:
        states: Tensor = output[-1] if isinstance(output, tuple) else output
        if self._is_forward and states.requires_grad:
            states.register_hook(partial(self._reach, number))  # type: ignore[no-untyped-call]

    def _reach(self, number: int, _gradient: Tensor) -> None:
        self.backward.setdefault(number, self.here())


def _composed(marks: _Marks, counts: Sequence[int], num_tokens: int) -> StepCost:
    """Puts the whole timeline together, each group of blocks as often as it counts."""
    reached = sorted(marks.backward, reverse=True)
    forward = [_Mark(0, 0, 0), *marks.forward, marks.loss]
    backward = [marks.loss, *(marks.backward[number] for number in reached), marks.here()]
    live = peak = flops = slow_flops = 0
    ends = []
    for cuts, repeats in ((forward, [1, *counts]), (backward, [1, *(counts[number] for number in reached)])):
        for (start, stop), repeat in zip(pairwise(cuts), repeats, strict=True):
            segment = _segment(marks.counter.timeline, start, stop)
            peak = max(peak, live + segment.peak, live + (repeat - 1) * segment.change + segment.peak)
            live += repeat * segment.change
            flops += repeat * segment.flops
            slow_flops += repeat * segment.slow_flops
        ends.append(live)
    return StepCost(ends[0], peak, flops, slow_flops, num_tokens)


def _segment(timeline: Sequence[int], start: _Mark, stop: _Mark) -> _Segment:
    before = timeline[start.operators - 1] if start.operators else 0
    within = timeline[start.operators : stop.operators] or [before]
    return _Segment(
        max(within) - before, within[-1] - before, stop.flops - start.flops, stop.slow_flops - start.slow_flops
    )


def _loss(architecture: Architecture, denoiser: nn.Module, workload: Workload) -> tuple[Tensor, int]:
    """Returns the loss of flow matching and the number of tokens, as ``FlowMatching.loss`` and ``velocity`` do it."""
    batch, channels, factor = workload.micro_batch, architecture.latent_channels, architecture.vae_factor

    def latents(size: tuple[int, int]) -> Tensor:
        shape = (batch, channels, size[0] // factor, size[1] // factor)
        return torch.empty(shape, dtype=workload.dtype, device="meta")

    kept, sources = latents(workload.sizes.output), [latents(workload.sizes.source)] * workload.num_sources
    text = _text(architecture, workload)
    target = kept.float()
    noise = torch.empty_like(target)
    level = torch.empty(batch, device="meta").view(-1, 1, 1, 1)
    noisy = (1.0 - level) * target + level * noise
    tokens = torch.cat([pack(noisy), *map(pack, sources)], dim=1).to(workload.dtype)  # [B, N + N' + .., 4C]
    predicted = denoiser(hidden_states=tokens, **_inputs(architecture, noisy, sources, text, workload))[0]
    height, width = noisy.shape[-2:]
    velocity = unpack(predicted[:, : (height // 2) * (width // 2)].float(), height=height, width=width)
    weight = torch.empty(batch, 1, height, width, device="meta")
    loss = (((velocity - (noise - target)) ** 2) * weight).mean(dim=(1, 2, 3)).mean()
    return loss, tokens.shape[1] + workload.text_tokens


def _resting(denoiser: nn.Module) -> Iterator[Tensor]:
    """Yields parameters, buffers, and tables that are neither: Qwen's positions."""
    yield from denoiser.parameters()
    yield from denoiser.buffers()
    for module in denoiser.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def _text(architecture: Architecture, workload: Workload) -> Tensor:
    config: Any = architecture.denoiser.config
    shape = (workload.micro_batch, workload.text_tokens, int(config.joint_attention_dim))
    return torch.empty(shape, dtype=workload.dtype, device="meta")


def _inputs(
    architecture: Architecture, noisy: Tensor, sources: Sequence[Tensor], text: Tensor, workload: Workload
) -> dict[str, Any]:  # the transformers' own arguments
    batch = len(noisy)
    common = {
        "timestep": torch.empty(batch, dtype=workload.dtype, device="meta"),
        "encoder_hidden_states": text,
        "return_dict": False,
    }
    config: Any = architecture.denoiser.config
    if architecture.family == "qwen":
        grids = [(1, each.shape[-2] // 2, each.shape[-1] // 2) for each in (noisy, *sources)]
        mask = torch.ones(text.shape[:2], dtype=torch.long, device="meta") if workload.has_mask else None
        return common | {
            "guidance": None,
            "encoder_hidden_states_mask": mask,
            "img_shapes": [grids] * batch,
            "attention_kwargs": {},
        }
    return common | {
        "guidance": torch.empty(batch, device="meta") if config.guidance_embeds else None,
        "pooled_projections": torch.empty(batch, config.pooled_projection_dim, dtype=workload.dtype, device="meta"),
        "txt_ids": torch.empty(text.shape[1], 3, dtype=workload.dtype, device="meta"),
        "img_ids": token_positions(noisy, sources[0], workload.dtype),
        "joint_attention_kwargs": {},
    }
