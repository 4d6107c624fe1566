"""What the rule judge measures pixel by pixel in a crop: brightness, background, and nearness to a colour.

Shape legend: h w pixels of a crop. Crops are float32 ``[h, w, 3]`` in 0..1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.scenes.draw import Colour

Crop = NDArray[np.float32]
Map = NDArray[np.float32]

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in perceived brightness. Source: ITU-R BT.601."""


def luminance(crop: Crop) -> Map:
    """Perceived brightness, ``[h, w]`` in 0..1."""
    bright: Map = crop @ _LUMA
    return bright


def background(crop: Crop) -> Crop:
    """What would be seen if nothing stood in the crop: each row drawn across between the crop's two edges.

    Boxes are made so that two columns at either edge are free; rows are smoothed over three to hold noise down.
    """
    left, right = _smooth_rows(crop[:, :2].mean(axis=1)), _smooth_rows(crop[:, -2:].mean(axis=1))
    share = np.linspace(0, 1, crop.shape[1], dtype=np.float32)[None, :, None]
    drawn: Crop = left[:, None, :] * (1 - share) + right[:, None, :] * share
    return drawn


def _smooth_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    padded = np.concatenate([rows[:1], rows, rows[-1:]])
    smooth: NDArray[np.float32] = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return smooth


def share_of_colour(crop: Crop, behind: Crop, colour: Colour) -> Map:
    """How far each pixel is from the background (0) to the colour (1), ``[h, w]``."""
    toward = np.asarray(colour, np.float32) - behind
    share: Map = ((crop - behind) * toward).sum(axis=2) / np.maximum((toward * toward).sum(axis=2), 1e-4)
    return share


def closeness(crop: Crop, behind: Crop, colour: Colour, *, shine: float = 0.3) -> Map:
    """How near each pixel comes to a shaded thing of this colour, ``[h, w]``: 0 is the background, 1 the thing.

    Unlike ``share_of_colour`` it takes a dark side for the thing itself, and a highlight that is up to ``shine`` of the
    way from the colour to white.
    """
    plain = np.asarray(colour, np.float32)
    shades = [plain * shade for shade in (0.75, 0.85, 0.95)]
    shades += [plain + (1 - plain) * part * shine for part in (0.0, 0.33, 0.67, 1.0)]
    far = np.maximum(distance_to_nearest(behind, shades), 0.05)
    near: Map = np.asarray(1 - distance_to_nearest(crop, shades) / far, np.float32)
    return near


def patches(values: Map, side: int = 3) -> Map:
    """Means over every ``side x side`` square, ``[h - side + 1, w - side + 1]``."""
    side = min(side, *values.shape)
    total = np.pad(values.astype(np.float64).cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    sums = total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]
    means: Map = np.asarray(sums / (side * side), np.float32)
    return means


def deviation(crop: Crop, behind: Crop) -> Map:
    """The absolute difference from the background in the channel where it is largest, ``[h, w]``."""
    apart: Map = np.abs(crop - behind).max(axis=2)
    return apart


def colour_excess(crop: Crop, colour: Colour) -> Map:
    """How much of a colour's hue each pixel has, 0 for grey and 1 for the colour itself, whatever the brightness.

    Pixels of another hue (cosine below 0.85) have none.
    """
    hue = np.asarray(colour, np.float32) - np.float32(sum(colour) / 3)
    chroma = crop - crop.mean(axis=2, keepdims=True)
    along = (chroma * hue).sum(axis=2)
    length = np.sqrt((hue * hue).sum())
    cosine = along / np.maximum(np.sqrt((chroma * chroma).sum(axis=2)) * length, 1e-6)
    excess: Map = np.where(cosine >= 0.85, along / (length * length), 0)
    return excess


def distance_to_nearest(crop: Crop, palette: list[NDArray[np.floating]]) -> Map:
    """The distance of each pixel to the nearest colour of a palette of single colours or whole crops, ``[h, w]``."""
    away = [np.sqrt(((crop - np.asarray(each, np.float32)) ** 2).sum(axis=2)) for each in palette]
    nearest: Map = np.minimum.reduce(away)
    return nearest
