"""What encoding pictures and instructions takes: text tokens, bytes that are kept, workspace, arithmetic."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from physedit.models.estimating.architectures import Architecture
from physedit.models.estimating.tracker import LiveBytes, fused_attention
from physedit.models.sizes import PictureSizes, qwen_size

_QWEN_TEMPLATE_TOKENS = 35
"""Of template and an instruction of about 20 tokens, rounded up. Source: docs/encoded-cache.md."""


@dataclass(frozen=True, slots=True)
class EncodingCost:
    """What the encoders take for one pair.

    Attributes:
        workspace: most bytes at once beside their weights.
        flops: floating point operations.
        latents: bytes of the encoded pictures, on disk.
        text: bytes of the encoded instruction, on disk.
    """

    workspace: int
    flops: int
    latents: int
    text: int


def text_tokens(
    architecture: Architecture,
    sizes: PictureSizes,
    *,
    max_text_tokens: int,
    num_sources: int,
    vision_area_px: int | None,
) -> int:
    """Returns the tokens that the denoiser sees of an instruction and, for Qwen, of the pictures beside it.

    Args:
        architecture: of the editor.
        sizes: of the pictures in pixels.
        max_text_tokens: of FLUX.1-Kontext, which always has so many.
        num_sources: pictures to edit from.
        vision_area_px: at which Qwen's text encoder sees a picture; None for as it is worked at.
    """
    if architecture.family == "flux":
        return max_text_tokens
    vision: Any = architecture.text_encoders["text_encoder"].config.vision_config  # type: ignore[union-attr]
    token_px = int(vision.patch_size) * int(vision.spatial_merge_size)
    seen = sizes.source if vision_area_px is None else qwen_size(*sizes.source, area_px=vision_area_px)
    of_picture = max(1, round(seen[0] / token_px)) * max(1, round(seen[1] / token_px))
    return num_sources * of_picture + _QWEN_TEMPLATE_TOKENS


def trace_encoding(
    architecture: Architecture, sizes: PictureSizes, *, num_sources: int, num_text_tokens: int, dtype: torch.dtype
) -> EncodingCost:
    """Returns what encoding one pair takes; the text encoders' share is counted from their parameters."""
    pictures = [sizes.output] + [sizes.source] * num_sources
    traced = {size: _trace_picture(architecture, size, dtype) for size in set(pictures)}
    cells = [height * width // architecture.vae_factor**2 for height, width in pictures]
    latents = sum(cells) * architecture.latent_channels * dtype.itemsize + 4 * cells[0]
    config: Any = architecture.denoiser.config
    widths = num_text_tokens * int(config.joint_attention_dim)
    pooled = int(config.pooled_projection_dim) if architecture.family == "flux" else 0
    return EncodingCost(
        workspace=max(*(peak for peak, _ in traced.values()), _text_workspace(architecture, num_text_tokens, dtype)),
        flops=sum(traced[size][1] for size in pictures) + _text_flops(architecture, num_text_tokens),
        latents=latents,
        text=(widths + pooled) * dtype.itemsize,
    )


def _trace_picture(architecture: Architecture, size: tuple[int, int], dtype: torch.dtype) -> tuple[int, int]:
    # The classes' own ``to`` warns of parts to be kept in float32, of which these have none.
    vae: Any = nn.Module.to(architecture.vae, dtype)
    shape = (1, 3, *size) if architecture.family == "flux" else (1, 3, 1, *size)
    counter = LiveBytes()
    counter.leave_out([*vae.parameters(), *vae.buffers()])
    with torch.no_grad(), fused_attention(counter), counter:
        vae.encode(torch.empty(shape, dtype=dtype, device="meta"))
    return max(counter.timeline), counter.flops


def _text_workspace(architecture: Architecture, num_tokens: int, dtype: torch.dtype) -> int:
    """Returns the bytes of Qwen's logits, which its pipeline computes and drops; FLUX's encoders have none."""
    if architecture.family == "flux":
        return 0
    text: Any = architecture.text_encoders["text_encoder"].config.text_config  # type: ignore[union-attr]
    return num_tokens * int(text.vocab_size) * dtype.itemsize


def _text_flops(architecture: Architecture, num_tokens: int) -> int:
    num_parameters = sum(each.numel() for part in architecture.text_encoders.values() for each in part.parameters())
    return 2 * num_parameters * num_tokens
