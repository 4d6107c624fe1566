"""Drawing primitives of the embedded world: masks with clean edges, paint, and exact random draws.

A picture is float32 ``[64, 64, 3]`` in 0..1, row by column by colour. Only sums, products and square roots touch the
pixels, which every machine rounds alike, so that the same seed gives the same bytes everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

SIZE = 64
"""Side of every picture in pixels."""

SUB = 4
"""Sub-samples per pixel side; a mask has 17 levels of coverage."""

Picture = NDArray[np.float32]
Mask = NDArray[np.float32]
Colour = tuple[float, float, float]
Inside = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.bool_]]
Option = TypeVar("Option")

_FINE = ((np.arange(SIZE * SUB, dtype=np.float32) + 0.5) / SUB).astype(np.float32)
_FINE_X = _FINE[None, :]
_FINE_Y = _FINE[:, None]
_CENTRE = np.arange(SIZE, dtype=np.float32) + np.float32(0.5)
PIXEL_X = np.broadcast_to(_CENTRE[None, :], (SIZE, SIZE))
"""Column centre of each pixel, ``[64, 64]``."""
PIXEL_Y = np.broadcast_to(_CENTRE[:, None], (SIZE, SIZE))
"""Row centre of each pixel, ``[64, 64]``."""


class Dice:
    """Random draws that are the same on every machine: only ``random.Random.random`` is used."""

    def __init__(self, key: str) -> None:
        self._random = random.Random(key)

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self._random.random()

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options."""
        return options[int(self._random.random() * len(options))]

    def sign(self) -> int:
        """-1 or 1."""
        return 1 if self._random.random() < 0.5 else -1

    def happens(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability


def coverage(inside: Inside) -> Mask:
    """How much of each pixel lies inside: ``[64, 64]`` float32 in 0..1, from 4 x 4 sub-samples.

    Args:
        inside: tells for sub-sample coordinates ``x [1, 256]`` and ``y [256, 1]`` in pixels which points belong.
    """
    hits = np.broadcast_to(inside(_FINE_X, _FINE_Y), (SIZE * SUB, SIZE * SUB))
    columns = hits.reshape(SIZE * SUB, SIZE, SUB).sum(axis=2, dtype=np.uint8)  # [256, 64]
    counts = columns.reshape(SIZE, SUB, SIZE).sum(axis=1, dtype=np.uint8)  # [64, 64]
    share: Mask = counts.astype(np.float32) / np.float32(SUB * SUB)
    return share


def rectangle(left: float, top: float, right: float, bottom: float) -> Mask:
    """Coverage of an axis-parallel rectangle."""
    across = _overlap(left, right)
    down = _overlap(top, bottom)
    mask: Mask = down[:, None] * across[None, :]
    return mask


def disc(x: float, y: float, radius: float) -> Mask:
    """Coverage of a disc."""
    return coverage(lambda px, py: (px - x) ** 2 + (py - y) ** 2 <= radius * radius)


def _overlap(low: float, high: float) -> NDArray[np.float32]:
    edges = np.arange(SIZE, dtype=np.float32)
    share: NDArray[np.float32] = np.clip(np.minimum(edges + 1, high) - np.maximum(edges, low), 0, 1)
    return share


def paint(picture: Picture, mask: Mask, colour: Colour | Picture) -> Picture:
    """A copy of the picture with a colour, or another picture, laid over the mask."""
    layer = np.asarray(colour, dtype=np.float32)
    return picture + (layer - picture) * mask[:, :, None]


def fade(top: Colour, bottom: Colour, start: float = 0.0, end: float = float(SIZE)) -> Picture:
    """A vertical gradient from the top colour at row ``start`` to the bottom colour at row ``end``."""
    share = np.clip((_CENTRE - start) / (end - start), 0, 1)[:, None, None].astype(np.float32)
    upper, lower = np.asarray(top, np.float32), np.asarray(bottom, np.float32)
    return np.broadcast_to(upper + (lower - upper) * share, (SIZE, SIZE, 3)).astype(np.float32)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """The colour that is ``share`` of the way from one to the other."""
    red, green, blue = (a + (b - a) * share for a, b in zip(one, other, strict=True))
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """The largest difference in any of the three channels."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def to_bytes(picture: Picture) -> NDArray[np.uint8]:
    """The picture as uint8 ``[64, 64, 3]``, rounded to nearest."""
    return (np.clip(picture, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)


def rgb(code: str) -> Colour:
    """A colour from six hexadecimal digits."""
    red, green, blue = (int(code[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue
