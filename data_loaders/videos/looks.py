"""What is looked at of each frame: a small grey picture, how sharp it is, and what can be compared of two. Pure.

Shape legend: h w pixels of the small picture, R C rows and columns of its blocks, K side of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.videos.decode import Frame

Grey = NDArray[np.uint8]

LONG_SIDE_PX = 320
"""Long side of the small picture. Ours: two phone-sized people still differ by a block, and a second of it is 1 MB."""

BLOCK_PX = 20
"""K, so that 16:9 gives 16 x 9 blocks."""

_TEXTURE = 6.0
"""Least deviation of the levels in a block, of 255, for a moving camera to show in it. Ours: twice the noise."""

STILL_LEVELS = 6.0
"""A block whose levels differ by less on average, of 255, is still. Ours: noise and compression stay below 3."""

CHANGED_LEVELS = 12.0
"""A block whose levels differ by as much on average has changed. Ours: twice ``STILL_LEVELS``."""


@dataclass(frozen=True, slots=True)
class Look:
    """One frame as it is examined: ``grey`` uint8 ``[h, w]``, and how sharp it is (see ``sharpness_of``)."""

    number: int
    time_s: float
    grey: Grey
    sharpness: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How two small pictures differ.

    Attributes:
        level: median over blocks of the step in mean level, in 0..255: a change of the whole picture's brightness.
        still_share: of the blocks with texture, the share that is still, with ``level`` taken off; 1 without any.
        textured_share: of all blocks, the share with texture.
        num_changed: blocks that changed, with ``level`` taken off.
        changed_share: the same as a share of all blocks.
        structure: mean over blocks of what remains of the step in mean level, without ``level``.
    """

    level: float
    still_share: float
    textured_share: float
    num_changed: int
    changed_share: float
    structure: float


def looks_of(frames: Iterable[Frame], per_second: float) -> Iterator[Look]:
    """Yields a look at the first frame and then at every frame at least ``1 / per_second`` s after the last look."""
    due_s = -np.inf
    for frame in frames:
        # Half a millisecond: time stamps are rounded to the container's time base.
        if frame.time_s >= due_s - 5e-4:
            due_s = frame.time_s + 1 / per_second
            yield look_at(frame)


def looks_to_last(frames: Iterable[Frame], per_second: float) -> Iterator[Look]:
    """Yields the same looks, and one at the last frame if it is not among them."""
    due_s = -np.inf
    last: Frame | None = None
    for frame in frames:
        last = frame
        if frame.time_s >= due_s - 5e-4:
            due_s, last = frame.time_s + 1 / per_second, None
            yield look_at(frame)
    if last is not None:
        yield look_at(last)


def look_at(frame: Frame) -> Look:
    """Returns the look at one frame."""
    grey = frame.grey(*small_size(*frame.size))
    return Look(frame.number, frame.time_s, grey, sharpness_of(grey))


def small_size(height: int, width: int) -> tuple[int, int]:
    """Returns h and w: the long side ``LONG_SIDE_PX``, the other by aspect, in whole blocks."""
    scale = LONG_SIDE_PX / max(height, width)
    h, w = (max(1, round(side * scale / BLOCK_PX)) * BLOCK_PX for side in (height, width))
    return h, w


def sharpness_of(grey: Grey) -> float:
    """Returns the variance of the 4-neighbour Laplacian over that of the picture, so that a dimmed picture keeps it.

    Source: Pech-Pacheco et al., Diatom autofocusing in brightfield microscopy, ICPR 2000.
    """
    x = grey.astype(np.float32)
    laplacian = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]
    # One squared level: a picture without any contrast is not sharp.
    return float(laplacian.var() / max(x.var(), 1.0))


def difference(before: Grey, after: Grey) -> Difference:
    """Compares two small pictures of one size."""
    a, b = _blocks(before), _blocks(after)
    steps = (b - a).mean(axis=(2, 3))  # [R, C]
    level = float(np.median(steps))
    apart = np.abs(b - a - level).mean(axis=(2, 3))
    textured = np.maximum(a.std(axis=(2, 3)), b.std(axis=(2, 3))) >= _TEXTURE
    changed = apart >= CHANGED_LEVELS
    return Difference(
        level=level,
        still_share=float((apart < STILL_LEVELS)[textured].mean()) if textured.any() else 1.0,
        textured_share=float(textured.mean()),
        num_changed=int(changed.sum()),
        changed_share=float(changed.mean()),
        structure=float(np.abs(steps - level).mean()),
    )


@dataclass(frozen=True, slots=True)
class Drift:
    """How the blocks moved, in pixels of the small picture; all 0 where too few blocks can tell.

    ``down_px`` and ``right_px`` are medians over blocks, and so is ``amount_px``, which a zoom or a turn moves too.
    """

    down_px: float
    right_px: float
    amount_px: float


_LEAST_SHARE_THAT_TELLS = 0.05
"""Of all blocks. Ours: 7 of 16 x 9, of which a small subject is not the greater part."""

_LIKENESS = 0.7
"""Least correlation of a block with its counterpart for its movement to be read: beyond some 3 pixels it cannot."""

_LEAST_SLOPE = 0.002
"""Least mean square slope of a block of unit contrast in its flattest direction, per pixel: along an edge, movement
does not show. Ours; a stain as large as the block has 0.01."""


def drift(before: Grey, after: Grey) -> Drift:
    """Returns how the picture as a whole moved: the median of its blocks, so that a subject does not count.

    Brightness and contrast of each block are taken off first, so light may change. Exact below a pixel, too little
    above 2.

    Source: Lucas and Kanade, An iterative image registration technique, 1981; one step for each block.
    """
    a, b = _unit_blocks(before), _unit_blocks(after)
    mean = (a + b) / 2
    dy = (mean[:, :, 2:, 1:-1] - mean[:, :, :-2, 1:-1]) / 2
    dx = (mean[:, :, 1:-1, 2:] - mean[:, :, 1:-1, :-2]) / 2
    step = (b - a)[:, :, 1:-1, 1:-1]
    yy, xx, xy = (_block_means(one * other) for one, other in ((dy, dy), (dx, dx), (dy, dx)))
    flattest = (yy + xx) / 2 - np.sqrt(((yy - xx) / 2) ** 2 + xy**2)
    tells = (flattest >= _LEAST_SLOPE) & (_block_means(a * b) >= _LIKENESS)
    if tells.mean() < _LEAST_SHARE_THAT_TELLS:
        return Drift(0.0, 0.0, 0.0)
    ty, tx = (_block_means(slope * step)[tells] for slope in (dy, dx))
    determinant = (yy * xx - xy**2)[tells]
    down = (xy[tells] * tx - xx[tells] * ty) / determinant
    right = (xy[tells] * ty - yy[tells] * tx) / determinant
    return Drift(float(np.median(down)), float(np.median(right)), float(np.median(np.hypot(down, right))))


def _block_means(values: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    means: NDArray[np.float32] = values.mean(axis=(2, 3))
    return means


def _unit_blocks(grey: Grey) -> NDArray[np.float32]:
    """The blocks with mean 0 and, where they have any contrast, deviation 1; float32 ``[R, C, K, K]``."""
    blocks = _blocks(grey)
    centred = blocks - blocks.mean(axis=(2, 3), keepdims=True)
    deviation = centred.std(axis=(2, 3), keepdims=True)
    # Below half the texture that counts, noise would be blown up.
    unit: NDArray[np.float32] = np.where(deviation >= _TEXTURE / 2, centred / np.maximum(deviation, 1e-6), 0)
    return unit


def _blocks(grey: Grey) -> NDArray[np.float32]:
    """Returns the blocks, float32 ``[R, C, K, K]``."""
    h, w = grey.shape
    split = grey.reshape(h // BLOCK_PX, BLOCK_PX, w // BLOCK_PX, BLOCK_PX)
    return split.swapaxes(1, 2).astype(np.float32)
