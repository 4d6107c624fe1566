"""Building the stock FLUX.1-Kontext pipeline, and which of its layers an adapter may cover."""

import math
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


def time_shift(pipeline: "FluxKontextPipeline", num_tokens: int) -> float:
    """Returns the ``mu`` by which the pipeline's scheduler shifts its sigmas for a target of ``num_tokens``.

    Source: FluxKontextPipeline.__call__, diffusers.
    """
    from diffusers.pipelines.flux.pipeline_flux_kontext import calculate_shift

    config = pipeline.scheduler.config
    if not config.use_dynamic_shifting:
        return math.log(config.shift)
    return float(
        calculate_shift(
            num_tokens,
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
    )


def _random_tiny_pipeline(dtype: torch.dtype) -> "FluxKontextPipeline":
    from physedit.models.random_tiny import build_random_tiny

    pipeline = build_random_tiny(_RANDOM_TINY_SEED)
    for part in modules_of(pipeline).values():
        # The classes' own ``to`` warns of parts to be kept in float32, of which these have none.
        nn.Module.to(part, dtype)
    return pipeline
