"""Building the stock FLUX.1-Kontext pipeline, and which of its layers an adapter may cover."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from physedit.models.loading import freeze, modules_of, read_pipeline
from physedit.models.quantization import Quantization
from physedit.models.weights import RANDOM_RELEASED, RANDOM_TINY

if TYPE_CHECKING:
    from diffusers import FluxKontextPipeline

_RANDOM_TINY_SEED = 0

_BLOCK = r"transformer_blocks\.\d+\."
_SINGLE = r"single_transformer_blocks\.\d+\."
_IMAGE_ATTENTION = _BLOCK + r"attn\.(to_[qkv]|to_out\.0)"
_TEXT_ATTENTION = _BLOCK + r"attn\.(add_[qkv]_proj|to_add_out)"
_SINGLE_ATTENTION = _SINGLE + r"attn\.to_[qkv]"
_IMAGE_MLP = _BLOCK + r"ff\.net\.(0\.proj|2)"
_TEXT_MLP = _BLOCK + r"ff_context\.net\.(0\.proj|2)"
_SINGLE_MLP = _SINGLE + r"proj_(mlp|out)"

LORA_PRESETS: Mapping[str, tuple[str, ...]] = {
    "attention": (_IMAGE_ATTENTION, _TEXT_ATTENTION, _SINGLE_ATTENTION),
    "attention_mlp": (
        _IMAGE_ATTENTION,
        _TEXT_ATTENTION,
        _SINGLE_ATTENTION,
        _IMAGE_MLP,
        _TEXT_MLP,
        _SINGLE_MLP,
    ),
    "image_stream": (_IMAGE_ATTENTION, _IMAGE_MLP, _SINGLE_ATTENTION, _SINGLE_MLP),
    "all_linear": (r".*",),
}
"""``attention`` and ``attention_mlp`` cover both streams without modulation; ``image_stream`` is the latter
without the layers that text tokens alone pass; ``all_linear`` is every linear layer, modulation and embedders
too. A single block's ``proj_out`` mixes attention and feed-forward and counts as feed-forward."""


def load_pipeline(
    weights: Path | str,
    dtype: torch.dtype,
    components: Mapping[str, object] | None = None,
    quantization: Quantization | None = None,
) -> "FluxKontextPipeline":
    """Returns the pipeline as ``read_pipeline`` places it, every part frozen and in evaluation mode.

    Args:
        weights: a folder, a hub id, ``random_tiny`` or ``random_released``, which is on its device already.
        dtype: of every weight.
        components: parts to use instead of the stored ones; see ``read_pipeline``.
        quantization: of the transformer's linear layers; never with random weights.

    Raises:
        ValueError: ``weights`` cannot be loaded, or its schedule is one that training does not reproduce.
    """
    from diffusers import FluxKontextPipeline

    if weights == RANDOM_TINY:
        pipeline = _random_tiny_pipeline(dtype)
    elif weights == RANDOM_RELEASED:
        from physedit.models.random_released import build_random_flux, released_device

        pipeline = build_random_flux(dtype, released_device(RANDOM_RELEASED), tuple(components or ()))
    else:
        pipeline = read_pipeline(FluxKontextPipeline, weights, dtype, components or {}, quantization)
    freeze(pipeline)
    if pipeline.scheduler.config.use_dynamic_shifting and (pipeline.scheduler.config.time_shift_type != "exponential"):
        raise ValueError("FLUX.1-Kontext's scheduler must shift time exponentially; see scheduler_config.json.")
    return pipeline


def _random_tiny_pipeline(dtype: torch.dtype) -> "FluxKontextPipeline":
    from physedit.models.random_tiny import build_random_tiny

    pipeline = build_random_tiny(_RANDOM_TINY_SEED)
    for part in modules_of(pipeline).values():
        # The classes' own ``to`` warns of parts to be kept in float32, of which these have none.
        nn.Module.to(part, dtype)
    return pipeline
