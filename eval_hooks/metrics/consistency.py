"""PSNR outside the edit: how much of what should stay has stayed.

Shape legend: H W pixels.

Source: github.com/Andrew0613/PICABench at 0514acd, PicaEval_consistency.py. Pictures of one size are compared in whole
numbers here, exactly, and in float32 there, which differs by less than 1e-4 dB. PICABench's paper prints eq. 2 without
the mean over channels, which gives 4.77 dB less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.sample import Box
from physedit.eval_hooks.hook import MetricValue
from physedit.eval_hooks.metrics.metric import ItemRecord, Tally, ratio_of_sums

SQUARE_SIDE_PX = 512
"""Side of the square to which the published example squeezes pictures. Source: PICABench's README, ``--size 512``."""
_SAME_BELOW_MSE = 1e-10  # PicaEval_consistency.py
_SAME_DB = 100.0  # PicaEval_consistency.py
_CHUNK = 2**19
"""Values compared at once: few calls, each long, so that threads do not wait for each other. By benchmarks/psnr.py."""
_SUMMED = 2**16
"""So many squares of at most 255^2 fit in 32 bits, which are summed faster than 64."""


def psnr_outside(source: Tensor, edited: Tensor, edit_area: Sequence[Box]) -> float | None:
    """Returns the PSNR in dB over the pixels outside ``edit_area``, or None if none is left.

    Pure, and safe to call from many threads at once.

    Args:
        source: ``[3, H, W]``, uint8 or floating, in levels of 0 to 255.
        edited: ``[3, H', W']``; another size is first brought to H, W bilinearly.
        edit_area: rectangles in pixels of ``source``; empty for the whole picture.
    """
    outside = outside_mask(source.shape[-2], source.shape[-1], edit_area)
    num_pixels = 0 if outside is None else int(np.count_nonzero(outside.numpy()))
    if outside is None or num_pixels == 0:
        return None
    if source.shape != edited.shape:
        apart = _scaled(edited, source.shape) - _scaled(source, source.shape)
        total = float(apart[:, outside].square().sum())
    elif source.dtype == edited.dtype == torch.uint8:
        total = _squares_of_levels(source, edited, outside) / 255**2
    else:
        apart = (edited.to(torch.float64) - source.to(torch.float64)) / 255
        total = float(apart[:, outside].square().sum())
    mean_square = total / (3 * num_pixels)
    return _SAME_DB if mean_square < _SAME_BELOW_MSE else 0.0 - 10 * math.log10(mean_square)  # 0.0, not -0.0


def psnr_in_square(
    source: Tensor, edited: Tensor, edit_area: Sequence[Box], side: int = SQUARE_SIDE_PX
) -> float | None:
    """Returns ``psnr_outside`` of both pictures squeezed to ``side x side``, whatever their proportions.

    Args:
        source: uint8 ``[3, H, W]``.
        edited: uint8 ``[3, H', W']``.
        edit_area: rectangles in pixels of ``source``.
        side: of the square, in pixels.
    """
    across, down = side / source.shape[-1], side / source.shape[-2]
    scaled = [Box(box.x * across, box.y * down, box.width * across, box.height * down) for box in edit_area]
    return psnr_outside(_squeezed(source, side), _squeezed(edited, side), scaled)


def outside_mask(height: int, width: int, edit_area: Sequence[Box]) -> Tensor | None:
    """Returns bool ``[H, W]``, False in the rectangles; None if one has a negative side and so is no rectangle.

    Both corners belong to a rectangle, and their coordinates are truncated towards zero: x 3.9 and width 5 cover the
    columns 3 to 8. Drawn with Pillow, as the published script draws it.
    """
    drawn = Image.new("L", (width, height), 1)
    pen = ImageDraw.Draw(drawn)
    for box in edit_area:
        try:
            pen.rectangle([box.x, box.y, box.x + box.width, box.y + box.height], fill=0)
        except (ValueError, OverflowError):
            return None
    return torch.from_numpy(np.array(drawn).view(np.bool_))


def _squares_of_levels(source: Tensor, edited: Tensor, outside: Tensor) -> int:
    """The sum of squared differences of levels outside the edit, exact."""
    is_interleaved = source.stride(0) == 1
    first, second = (_in_planes(picture, is_interleaved) for picture in (source, edited))
    counted = (_of_each_channel(outside) if is_interleaved else outside.reshape(-1).numpy()).view(np.uint8)
    larger, smaller = np.empty((2, _CHUNK), dtype=np.uint8)
    squares = np.empty(_CHUNK, dtype=np.uint16)
    total = 0
    for one, other in zip(first, second, strict=True):
        for start in range(0, counted.size, _CHUNK):
            part = slice(start, min(start + _CHUNK, counted.size))
            size = part.stop - start
            apart: NDArray[np.uint8] = np.maximum(one[part], other[part], out=larger[:size])
            apart -= np.minimum(one[part], other[part], out=smaller[:size])
            apart *= counted[part]
            square = squares[:size]
            square[...] = apart
            square *= square
            sums = np.add.reduceat(square, np.arange(0, size, _SUMMED), dtype=np.uint32)
            total += int(sums.sum(dtype=np.uint64))
    return total


def _in_planes(picture: Tensor, is_interleaved: bool) -> NDArray[np.uint8]:
    """The levels in the order of the memory: ``[1, H * W * 3]`` if the channels of a pixel lie together."""
    levels = picture.permute(1, 2, 0).reshape(1, -1) if is_interleaved else picture.reshape(3, -1)
    return levels.numpy()


def _of_each_channel(outside: Tensor) -> NDArray[np.bool_]:
    """A mask of pixels as one of interleaved levels, ``[H * W * 3]``."""
    counted = np.empty((*outside.shape, 3), dtype=np.bool_)
    for channel in range(3):  # broadcasting over the innermost axis is slow
        counted[..., channel] = outside
    return counted.reshape(-1)


def _scaled(picture: Tensor, shape: torch.Size) -> Tensor:
    """The picture in 0..1 at another size, with the published script's float32 and its order in memory."""
    levels = picture.permute(1, 2, 0).to(torch.float64).contiguous() / 255  # [H, W, 3]
    small, size = levels.to(torch.float32).permute(2, 0, 1)[None], tuple(shape[-2:])
    if picture.shape != shape:
        small = functional.interpolate(small, size=size, mode="bilinear", align_corners=False)
    return small[0].to(torch.float64)


def _squeezed(picture: Tensor, side: int) -> Tensor:
    small = as_image(picture).resize((side, side), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


@dataclass(frozen=True, slots=True)
class Consistency:
    """Mean over items of the PSNR outside the edit in dB; items on which it is not defined are left out.

    Over an item whose edit may be anywhere it is the PSNR of the whole picture, as the published evaluator has it.
    Where the edit changes the whole picture (nightfall), that number rewards doing nothing.

    Attributes:
        in_square: take the PSNR of the pictures squeezed to a square of 512 pixels instead of the native one.
    """

    in_square: bool = False

    def tally(self, record: ItemRecord) -> Tally | None:
        """Returns an item's PSNR, or None if it is not defined."""
        value = record.psnr_512_db if self.in_square else record.psnr_db
        return None if value is None else Tally(value, 1.0)

    def score(self, records: Sequence[ItemRecord]) -> MetricValue:
        """Returns the mean; ``n`` counts items."""
        return ratio_of_sums([tally for record in records if (tally := self.tally(record)) is not None])
