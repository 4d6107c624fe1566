"""Bringing pictures to the size an editor works at. Pure.

Shape legend: H W pixels of a stored picture, h w pixels it is worked at.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_Box = tuple[float, float, float, float]


def resized(picture: Tensor, height_px: int, width_px: int) -> Tensor:
    """Returns the whole picture, uint8 ``[3, H, W]``, at another size, by Lanczos; it may be stretched.

    A picture that has the size already is returned as it is.

    Source: VaeImageProcessor.resize, diffusers: the same pixels for the same picture.
    """
    height, width = picture.shape[-2:]
    if (height, width) == (height_px, width_px):
        return picture
    return _resampled(picture, (height_px, width_px), (0, 0, width, height))


def fitted_target(target: Tensor, source: Tensor, height_px: int, width_px: int) -> Tensor:
    """Returns ``target`` at the size that ``source`` is stretched to, so that like points stay together.

    A target of the source's aspect, to within one pixel, is stretched as the source is, whatever its size. Of one
    with another aspect the largest centred part with the source's aspect is taken.

    Args:
        target: uint8 ``[3, H', W']``.
        source: uint8 ``[3, H, W]``; only its size counts.
        height_px: h, which ``source`` is brought to.
        width_px: w.
    """
    (height, width), (source_height, source_width) = target.shape[-2:], source.shape[-2:]
    if has_aspect_of(target, source):
        return resized(target, height_px, width_px)
    scale = min(height / source_height, width / source_width)
    box_height, box_width = source_height * scale, source_width * scale
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return _resampled(target, (height_px, width_px), (left, top, left + box_width, top + box_height))


def has_aspect_of(picture: Tensor, other: Tensor) -> bool:
    """True if scaling ``picture`` gives the size of ``other`` to within one pixel."""
    (height, width), (other_height, other_width) = other.shape[-2:], picture.shape[-2:]
    return abs(width * other_height / height - other_width) <= 1 or (
        abs(height * other_width / width - other_height) <= 1
    )


def as_image(picture: Tensor) -> Image.Image:
    """Returns uint8 ``[3, H, W]`` as a PIL picture."""
    return Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).cpu().numpy()))


def _resampled(picture: Tensor, size: tuple[int, int], box: _Box) -> Tensor:
    image = as_image(picture).resize((size[1], size[0]), Image.Resampling.LANCZOS, box=box)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
