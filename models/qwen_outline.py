"""What can be told of a Qwen-Image-Edit without loading it."""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from physedit.data_loaders.text_limits import Overlong, TextLimit
from physedit.models.outline import (
    RELEASED_VAE_FACTOR,
    Outline,
    TokenCount,
    absent_files,
    checked_guidance,
    local_files,
    setting,
)
from physedit.models.parts import checked_steps
from physedit.models.qwen_pipeline import MAX_SOURCES, checked_areas, checked_pipeline, found_weights
from physedit.models.qwen_room import QwenTextRule
from physedit.models.qwen_text import POSITIONS
from physedit.models.sizes import QWEN_MULTIPLE_PX, RELEASED_AREA_PX, PictureSizes, qwen_size
from physedit.models.weights import RANDOM_RELEASED, RANDOM_TINY

if TYPE_CHECKING:
    from transformers import Qwen2VLProcessor

_PIPELINE_TOKENS = 1024
"""Source: QwenImageEditPipeline, ``tokenizer_max_length``; the edit pipelines cut nothing at it."""
_SEEN_PATCH_PX = 28
"""A token of a picture that the encoder sees. Source: Qwen2.5-VL, patches of 14 merged in twos."""
_TEMPLATE_TOKENS = 16
"""Ours, rounded up: what the template adds to the states behind those that are dropped."""


def qwen_outline(settings: Mapping[str, object]) -> Outline:
    """Returns the outline of a ``QwenImageEdit`` of these arguments.

    Raises:
        ValueError: no such weights, pipeline or areas, or files of it that cannot be read.
    """
    pipeline = checked_pipeline(str(settings["pipeline"]))
    has_vision_area = settings.get("vision_area_px") is not None
    area_px, seen_px = checked_areas(
        pipeline,
        setting(settings, "area_px", RELEASED_AREA_PX),
        setting(settings, "vision_area_px", 0) if has_vision_area else None,
    )
    checked_guidance("edit_guidance", settings.get("edit_guidance", 1.0))
    checked_steps(settings.get("edit_steps", 1))
    weights = str(settings["weights"])
    found = found_weights(weights, pipeline)
    processor = _processor(weights, found)
    count = None if processor is None else TokenCount(processor.tokenizer)
    rule = None
    if processor is not None:
        token_px = 2 * _vae_factor(found)
        rule = QwenTextRule(pipeline, processor, area_px=area_px, seen_px=seen_px, token_px=token_px)
    why_not = absent_files(weights) if count is None else ""
    num_sources = MAX_SOURCES[pipeline]
    # For square pictures, and as many as it takes.
    of_pictures = num_sources * (seen_px // _SEEN_PATCH_PX**2) + math.isqrt(area_px) // QWEN_MULTIPLE_PX
    max_tokens = POSITIONS - of_pictures - _TEMPLATE_TOKENS
    is_long = f"the stock pipelines are meant for {_PIPELINE_TOKENS} tokens; all are read"
    fails = f"the transformer's {POSITIONS} positions leave about {max_tokens} for an instruction; the row is dropped"
    return Outline(
        sizes_of=partial(_sizes, area_px=area_px),
        max_sources=num_sources,
        text_limits=(
            TextLimit("Qwen2.5-VL", _PIPELINE_TOKENS, Overlong.UNUSUAL, is_long, count, why_not),
            TextLimit("transformer", max_tokens, Overlong.DROPPED, fails, count, why_not),
        ),
        text_rule=rule,
    )


def _processor(weights: str, found: Path | str) -> "Qwen2VLProcessor | None":
    from physedit.models.qwen_processor import PROCESSOR_FOLDER, load_processor

    if weights in (RANDOM_TINY, RANDOM_RELEASED):
        from physedit.models.random_tiny_qwen import build_processor
        from physedit.models.toy.qwen.text import build_tokenizer

        return build_processor(build_tokenizer(()))
    folder = local_files(found, PROCESSOR_FOLDER)
    return None if folder is None else load_processor(folder)


def _vae_factor(found: Path | str) -> int:
    """Returns the pixels a side of a latent cell, from the VAE's config; that of the released editors without one.

    Source: QwenImageEditPipeline.__init__, diffusers.
    """
    folder = None if found in (RANDOM_TINY, RANDOM_RELEASED) else local_files(found)
    file = None if folder is None else folder / "vae" / "config.json"
    if file is None or not file.is_file():
        return RELEASED_VAE_FACTOR
    try:
        return int(2 ** len(json.loads(file.read_text(encoding="utf-8"))["temperal_downsample"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is no config of a VAE: {type(error).__name__}: {error}. Download it again."
        ) from error


def _sizes(height: int, width: int, *, area_px: int) -> PictureSizes:
    size = qwen_size(height, width, area_px=area_px)
    return PictureSizes(source=size, output=size)
