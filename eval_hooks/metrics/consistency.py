"""PSNR outside the edit: how much of what should stay has stayed.

Shape legend: H W pixels.

Source: github.com/Andrew0613/PICABench, PicaEval_consistency.py, without its ``--size``. Computed in float64 here, in
float32 there. PICABench's paper prints eq. 2 without the mean over channels, which gives 4.77 dB less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.hook import MetricValue
from physedit.eval_hooks.metrics.metric import ItemRecord, Tally, ratio_of_sums

_SAME_BELOW_MSE = 1e-10  # PicaEval_consistency.py
_SAME_DB = 100.0  # PicaEval_consistency.py


def psnr_outside(source: Tensor, edited: Tensor, edit_area: Sequence[Box]) -> float | None:
    """Returns the PSNR in dB over the pixels outside ``edit_area``, or None if none is left.

    Args:
        source: uint8 ``[3, H, W]``.
        edited: uint8 ``[3, H', W']``; another size is first brought to H, W bilinearly.
        edit_area: rectangles in pixels of ``source``; empty for the whole picture.
    """
    reference, other = source.to(torch.float64) / 255, edited.to(torch.float64) / 255
    if other.shape != reference.shape:
        other = functional.interpolate(
            other[None], size=tuple(reference.shape[-2:]), mode="bilinear", align_corners=False
        )[0]
    outside = outside_mask(source.shape[-2], source.shape[-1], edit_area)
    if outside is None or not outside.any():
        return None
    mean_square = float((other - reference)[:, outside].square().mean())
    return _SAME_DB if mean_square < _SAME_BELOW_MSE else -10 * math.log10(mean_square)


def outside_mask(height: int, width: int, edit_area: Sequence[Box]) -> Tensor | None:
    """Returns bool ``[H, W]``, False in the rectangles; None if one has a negative side and so is no rectangle.

    Both corners belong to a rectangle, and their coordinates are truncated towards zero: x 3.9 and width 5 cover the
    columns 3 to 8.
    """
    outside = torch.ones(height, width, dtype=torch.bool)
    for box in edit_area:
        if box.width < 0 or box.height < 0:
            return None
        left, top = int(box.x), int(box.y)
        right, bottom = int(box.x + box.width), int(box.y + box.height)
        if right >= 0 and bottom >= 0:
            outside[max(top, 0) : bottom + 1, max(left, 0) : right + 1] = False
    return outside


@dataclass(frozen=True, slots=True)
class Consistency:
    """Mean over items of ``psnr_outside`` in dB; items on which it is not defined are left out.

    Over an item whose edit may be anywhere it is the PSNR of the whole picture, as the published evaluator has it.
    Where the edit changes the whole picture (nightfall), that number rewards doing nothing.
    """

    def tally(self, record: ItemRecord) -> Tally | None:
        """Returns an item's PSNR, or None if it is not defined."""
        return None if record.psnr_db is None else Tally(record.psnr_db, 1.0)

    def score(self, records: Sequence[ItemRecord]) -> MetricValue:
        """Returns the mean; ``n`` counts items."""
        return ratio_of_sums([tally for record in records if (tally := self.tally(record)) is not None])
