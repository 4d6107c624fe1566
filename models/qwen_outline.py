"""What can be told of a Qwen-Image-Edit without loading it."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from physedit.data_loaders.text_limits import Overlong, TextLimit, TokenCounter
from physedit.models.outline import Outline, TokenCount, absent_files, checked_guidance, local_files, setting
from physedit.models.qwen_pipeline import MAX_SOURCES, checked_areas, checked_pipeline, found_weights
from physedit.models.qwen_text import POSITIONS
from physedit.models.sizes import QWEN_MULTIPLE_PX, RELEASED_AREA_PX, PictureSizes, qwen_size
from physedit.models.weights import RANDOM_TINY

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
    weights = str(settings["weights"])
    count = _counter(weights, found_weights(weights, pipeline))
    why_not = absent_files(weights) if count is None else ""
    num_sources = MAX_SOURCES[pipeline]
    # For square pictures, and as many as it takes.
    of_pictures = num_sources * (seen_px // _SEEN_PATCH_PX**2) + math.isqrt(area_px) // QWEN_MULTIPLE_PX
    max_tokens = POSITIONS - of_pictures - _TEMPLATE_TOKENS
    is_long = f"the stock pipelines are meant for {_PIPELINE_TOKENS} tokens; all are read"
    fails = f"the transformer's {POSITIONS} positions leave about {max_tokens} for an instruction; the step fails"
    return Outline(
        sizes_of=partial(_sizes, area_px=area_px),
        max_sources=num_sources,
        text_limits=(
            TextLimit("Qwen2.5-VL", _PIPELINE_TOKENS, Overlong.UNUSUAL, is_long, count, why_not),
            TextLimit("transformer", max_tokens, Overlong.STOPS, fails, count, why_not),
        ),
    )


def _counter(weights: str, found: Path | str) -> TokenCounter | None:
    from physedit.models.qwen_processor import PROCESSOR_FOLDER, load_processor

    if weights == RANDOM_TINY:
        from physedit.models.toy.qwen.text import build_tokenizer

        return TokenCount(build_tokenizer(()))
    folder = local_files(found, PROCESSOR_FOLDER)
    return None if folder is None else TokenCount(load_processor(folder).tokenizer)


def _sizes(height: int, width: int, *, area_px: int) -> PictureSizes:
    size = qwen_size(height, width, area_px=area_px)
    return PictureSizes(source=size, output=size)
