"""Building the stock FLUX.1-Kontext pipeline, and which of its layers an adapter may cover."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from physedit.models.weights import RANDOM_TINY, hash_modules

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


def load_pipeline(weights: Path | str, dtype: torch.dtype) -> "FluxKontextPipeline":
    """Returns the pipeline on the CPU, every part frozen and in evaluation mode.

    Raises:
        ValueError: ``weights`` cannot be loaded, or its schedule is one that training does not reproduce.
    """
    pipeline = _random_tiny_pipeline(dtype) if weights == RANDOM_TINY else _read_pipeline(weights, dtype)
    pipeline.set_progress_bar_config(disable=True)
    for part in _modules(pipeline):
        part.requires_grad_(False).eval()
    if pipeline.scheduler.config.use_dynamic_shifting and (pipeline.scheduler.config.time_shift_type != "exponential"):
        raise ValueError("FLUX.1-Kontext's scheduler must shift time exponentially; see scheduler_config.json.")
    return pipeline


def hash_pipeline(pipeline: "FluxKontextPipeline") -> str:
    """Returns a hash over all weights as they are now."""
    return hash_modules(*_modules(pipeline))


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
    if dtype != torch.float32:
        for part in _modules(pipeline):
            part.to(dtype)
    return pipeline


def _read_pipeline(weights: Path | str, dtype: torch.dtype) -> "FluxKontextPipeline":
    from diffusers import FluxKontextPipeline

    try:
        with _without_loading_bars():
            return FluxKontextPipeline.from_pretrained(str(weights), dtype=dtype)
    # A damaged file shows as anything from OverflowError to the tokenizers' bare Exception.
    except Exception as error:
        raise ValueError(
            f"backbone.weights '{weights}' cannot be loaded as a FLUX.1-Kontext pipeline: {type(error).__name__}: "
            f"{error}. A gated model needs its licence accepted on the hub and `hf auth login`; a local folder must "
            "be complete and undamaged: if it is not, download it again."
        ) from error


@contextmanager
def _without_loading_bars() -> Iterator[None]:
    """Keeps the bars of reading weights, which take seconds, out of logs; a download from the hub keeps its own."""
    from diffusers.utils import logging as diffusers_log
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_log

    shown = [log for log in (diffusers_log, transformers_log) if log.is_progress_bar_enabled()]
    # The switch of transformers throws that of the hub too.
    set_hub_back = disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars
    for log in shown:
        log.disable_progress_bar()
    set_hub_back()
    try:
        yield
    finally:
        for log in shown:
            log.enable_progress_bar()
        set_hub_back()


def _modules(pipeline: "FluxKontextPipeline") -> tuple[nn.Module, ...]:
    return pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2
