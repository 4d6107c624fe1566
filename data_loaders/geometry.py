"""Bringing the two pictures of an edit pair to one size by one map. Pure.

Shape legend: H W pixels.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def resize_cover_and_crop(source: Tensor, target: Tensor, *, height_px: int, width_px: int) -> tuple[Tensor, Tensor]:
    """Scales both pictures until they cover the size and cuts the centre, by the same relative map.

    Lanczos from the uncut picture in one step, so no point moves by a rounded intermediate size. A picture
    that already has the size is returned as it is.

    Args:
        source: uint8 ``[3, H, W]``.
        target: uint8 ``[3, H', W']`` with the aspect of ``source`` to within one pixel.
        height_px: height of both results.
        width_px: width of both results.

    Raises:
        ValueError: the aspects differ, so that one map would pair unlike points.
    """
    if not _same_aspect(source, target):
        raise ValueError(
            f"The source is {_size(source)} and the target {_size(target)} (width x height): their aspects "
            "differ, so no common resize keeps the pair aligned."
        )
    return cover_and_crop(source, height_px, width_px), cover_and_crop(target, height_px, width_px)


def cover_and_crop(picture: Tensor, height_px: int, width_px: int) -> Tensor:
    """Scales uint8 ``[3, H, W]`` until it covers the size and cuts the centre, as one of the pair would be."""
    height, width = picture.shape[-2:]
    if (height, width) == (height_px, width_px):
        return picture
    scale = min(height / height_px, width / width_px)
    box_height, box_width = height_px * scale, width_px * scale
    left, top = (width - box_width) / 2, (height - box_height) / 2
    image = Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    box = (left, top, left + box_width, top + box_height)
    resized = image.resize((width_px, height_px), Image.Resampling.LANCZOS, box=box)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


def _same_aspect(source: Tensor, target: Tensor) -> bool:
    (height, width), (other_height, other_width) = source.shape[-2:], target.shape[-2:]
    return abs(width * other_height / height - other_width) <= 1 or (
        abs(height * other_width / width - other_height) <= 1
    )


def _size(picture: Tensor) -> str:
    height, width = picture.shape[-2:]
    return f"{width}x{height}"
