"""The size rule of each backbone: what size a picture is worked at, as the stock pipeline chooses it. Pure.

A source is stretched to its working size, its target is fitted to the same (data_loaders/geometry.py), and an edit
comes out in it; training and evaluation have no other rule. docs/sizes.md shows it for common sizes.
"""

import math

from physedit.data_loaders.sample import PictureSizeError

RELEASED_AREA_PX = 1024 * 1024
"""The area that the released editors work at."""
MAX_AREA_PX = 4 * RELEASED_AREA_PX
"""Ours: beyond it neither family was trained, and its attention would take sixteen times the time."""
QWEN_MULTIPLE_PX = 32


def kontext_size(height: int, width: int, *, area_px: int, multiple_px: int) -> tuple[int, int]:
    """Returns height and width: of FLUX.1-Kontext's 17 preferred sizes the one with the nearest aspect.

    For another area than the released one the preferred sizes are scaled and rounded to the multiple, to two of it
    at least.

    Args:
        height: of the stored picture.
        width: of the stored picture.
        area_px: about the product of both results.
        multiple_px: both results are multiples of it.

    Source: FluxKontextPipeline.__call__, diffusers (``_auto_resize``).
    """
    from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

    aspect = width / height
    _, best_width, best_height = min((abs(aspect - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
    if area_px == RELEASED_AREA_PX:
        return best_height // multiple_px * multiple_px, best_width // multiple_px * multiple_px
    scale = math.sqrt(area_px / RELEASED_AREA_PX)
    return _nearest(best_height * scale, multiple_px), _nearest(best_width * scale, multiple_px)


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
        raise PictureSizeError(
            f"A picture of {width}x{height} is too long and narrow for an area of {area_px} pixels: one side would "
            f"be below {QWEN_MULTIPLE_PX // 2}. Crop it, or raise backbone.area_px."
        )
    return found


def _to_multiple(side: float) -> int:
    return round(side / QWEN_MULTIPLE_PX) * QWEN_MULTIPLE_PX


def _nearest(side: float, multiple: int) -> int:
    return max(2, round(side / multiple)) * multiple
