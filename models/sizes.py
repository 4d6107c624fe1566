"""The size rule of each backbone: what size a picture is worked at, as the stock pipeline chooses it. Pure.

A stored picture has two sizes: ``source``, which it is stretched to as a picture to edit from, and ``output``, which
its target is fitted to (data_loaders/geometry.py) and its edit comes out in. Training and evaluation have no other
rule. docs/sizes.md shows it for common sizes.
"""

import math
from dataclasses import dataclass

from physedit.data_loaders.sample import PictureSizeError

RELEASED_AREA_PX = 1024 * 1024
"""The area that the released editors work at."""
MAX_AREA_PX = 4 * RELEASED_AREA_PX
"""Ours: beyond it neither family was trained, and its attention would take sixteen times the time."""
QWEN_MULTIPLE_PX = 32


@dataclass(frozen=True, slots=True)
class PictureSizes:
    """Height and width in pixels of a source and of its edit."""

    source: tuple[int, int]
    output: tuple[int, int]


def kontext_sizes(height: int, width: int, *, area_px: int, multiple_px: int) -> PictureSizes:
    """Returns the sizes for FLUX.1-Kontext.

    The source is stretched to that of the model's 17 preferred sizes with the nearest aspect; for another area than the
    released one they are scaled. The output has the picture's own aspect at ``area_px``, as the pipeline makes it when
    height and width are passed, which is how the published PICABench pictures were made (facts in docs/sizes.md).

    Args:
        height: of the stored picture.
        width: of the stored picture.
        area_px: about the product of height and width of both results.
        multiple_px: every side is a multiple of it.

    Raises:
        PictureSizeError: a side would round to nothing.

    Source: FluxKontextPipeline.__call__, diffusers (``_auto_resize``, ``max_area``).
    """
    aspect = width / height
    found = (
        _floored(round(math.sqrt(area_px / aspect)), multiple_px),
        _floored(round(math.sqrt(area_px * aspect)), multiple_px),
    )
    if min(found) == 0:
        raise _too_narrow(height, width, area_px, multiple_px)
    # The pipeline takes the aspect of the picture cut to whole multiples.
    cut_aspect = max(1, width // multiple_px) / max(1, height // multiple_px)
    return PictureSizes(source=_preferred(cut_aspect, area_px, multiple_px), output=found)


def qwen_size(height: int, width: int, *, area_px: int) -> tuple[int, int]:
    """Returns height and width: the picture's aspect at ``area_px``, each side rounded to a multiple of 32.

    Args:
        height: of the stored picture.
        width: of the stored picture.
        area_px: about the product of both results.

    Raises:
        PictureSizeError: a side would round to nothing.

    Source: calculate_dimensions, QwenImageEditPipeline, diffusers.
    """
    aspect = width / height
    wanted_width = math.sqrt(area_px * aspect)
    wanted_height = wanted_width / aspect
    found = _to_multiple(wanted_height), _to_multiple(wanted_width)
    if min(found) == 0:
        raise _too_narrow(height, width, area_px, QWEN_MULTIPLE_PX // 2)
    return found


def _preferred(aspect: float, area_px: int, multiple_px: int) -> tuple[int, int]:
    from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

    _, width, height = min((abs(aspect - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
    if area_px == RELEASED_AREA_PX:
        return _floored(height, multiple_px), _floored(width, multiple_px)
    scale = math.sqrt(area_px / RELEASED_AREA_PX)
    return _nearest(height * scale, multiple_px), _nearest(width * scale, multiple_px)


def _too_narrow(height: int, width: int, area_px: int, least_px: int) -> PictureSizeError:
    return PictureSizeError(
        f"A picture of {width}x{height} is too long and narrow for an area of {area_px} pixels: one side would be "
        f"below {least_px}. Crop it, or raise backbone.area_px."
    )


def _floored(side: int, multiple: int) -> int:
    return side // multiple * multiple


def _to_multiple(side: float) -> int:
    return round(side / QWEN_MULTIPLE_PX) * QWEN_MULTIPLE_PX


def _nearest(side: float, multiple: int) -> int:
    return max(2, round(side / multiple)) * multiple
