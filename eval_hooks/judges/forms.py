"""What the rule judge measures of forms in a crop: a thing's outline, a stick in water, the fading of light.

Shape legend: h w pixels of a crop. Crops are float32 ``[h, w, 3]`` in 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.scenes.draw import Colour, mix
from physedit.data_loaders.scenes.refraction import TINT, WATER
from physedit.eval_hooks.judges.measures import Crop, Map, background, share_of_colour


@dataclass(frozen=True, slots=True)
class Outline:
    """How well a blob of colour is the named shape.

    ``top`` and ``bottom`` are rows of the crop, ``width`` and ``height`` are pixels; ``fit`` is the overlap of the blob
    with the ideal shape in its own rectangle over their union; ``solid`` is the closeness that three quarters of the
    blob's inside exceed, and ``edge`` the part of the crop that is neither colour nor background, in pixels per pixel
    of outline.
    """

    top: float
    bottom: float
    width: float
    height: float
    fit: float
    solid: float
    edge: float


def outline_of(share: Map, inner: Map, shape: str) -> Outline | None:
    """Measures the blob of colour in a crop against a box, ball or cone; None if there is next to no colour.

    Args:
        share: closeness to the colour, highlights included, ``[h, w]``.
        inner: closeness to the colour as most of the shape's inside should show it, ``[h, w]``.
        shape: ``box``, ``ball`` or ``cone``.
    """
    solid = share >= 0.5
    if solid.sum() < 20:
        return None
    soft = np.clip(share, 0, 1)
    top, bottom = _ends(_line_strength(soft, axis=1))
    left, right = _ends(_line_strength(soft, axis=0))
    ideal = _ideal(shape, share.shape, (left, top, right, bottom))
    both, either = np.minimum(ideal, solid).sum(), np.maximum(ideal, solid).sum()
    core = _eroded(_eroded(ideal >= 0.99))
    inside = float(np.percentile(inner[core], 25)) if core.any() else 0.0
    between = float(((share > 0.2) & (share < 0.7)).sum()) / (2 * (right - left + bottom - top))
    return Outline(top, bottom, right - left, bottom - top, float(both / either), inside, between)


def _line_strength(soft: Map, axis: int) -> NDArray[np.float32]:
    """The mean of the three strongest pixels of each row (axis 1) or column (axis 0)."""
    strongest: NDArray[np.float32] = np.sort(soft, axis=axis).take(range(-3, 0), axis=axis).mean(axis=axis)
    return strongest


def _ends(strength: NDArray[np.float32]) -> tuple[float, float]:
    """Where a run of coloured lines begins and ends, in fractions of a line."""
    full = np.flatnonzero(strength >= 0.5)
    if full.size == 0:
        return 0.0, 0.0
    first, last = int(full[0]), int(full[-1])
    return float(first), float(last + 1)


def _ideal(shape: str, size: tuple[int, int], rectangle: tuple[float, float, float, float]) -> Map:
    """Coverage of the ideal shape in a rectangle, from 4 x 4 sub-samples."""
    left, top, right, bottom = rectangle
    y = ((np.arange(size[0] * 4) + 0.5) / 4)[:, None]
    x = ((np.arange(size[1] * 4) + 0.5) / 4)[None, :]
    across, up = (x - (left + right) / 2) / max(right - left, 1) * 2, (bottom - y) / max(bottom - top, 1)
    standing = (up >= 0) & (up <= 1)
    if shape == "ball":
        hits = across**2 + (2 * up - 1) ** 2 <= 1
    elif shape == "cone":
        hits = standing & (np.abs(across) <= 1 - up)
    else:
        hits = standing & (np.abs(across) <= 1)
    cover: Map = np.mean(hits.reshape(size[0], 4, size[1], 4), axis=(1, 3), dtype=np.float32)
    return cover


def _eroded(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inner = np.pad(mask, 1)
    kept: NDArray[np.bool_] = mask & inner[:-2, 1:-1] & inner[2:, 1:-1] & inner[1:-1, :-2] & inner[1:-1, 2:]
    return kept


LEAST_WATER_STEP = 0.07
"""How much blue must gain on red from one side of a row to the other for the row to be a surface of water."""


def water_step(crop: Crop) -> tuple[int, float]:
    """The row where the crop's edges turn blue most sharply, and by how much blue gains on red there."""
    edges = np.concatenate([crop[:, :2], crop[:, -2:]], axis=1).mean(axis=1)  # [h, 3]
    blue = edges[:, 2] - edges[:, 0]
    rows = range(3, len(blue) - 2)
    if not rows:
        return 0, 0.0
    steps = [float(blue[row : row + 3].mean() - blue[row - 3 : row].mean()) for row in rows]
    best = int(np.argmax(steps))
    return rows[best], steps[best]


@dataclass(frozen=True, slots=True)
class StickProfiles:
    """Share of the stick's colour: above the surface, straight on below it, and 6 to 10 pixels to either side."""

    above: float
    straight: float
    aside: float


def stick_profiles(crop: Crop, colour: Colour) -> StickProfiles | None:
    """Follows a slanted stick through the water's surface; None if there is no surface."""
    surface, step = water_step(crop)
    if step < LEAST_WATER_STEP:
        return None
    behind = background(crop)
    share = share_of_colour(crop, behind, colour)
    share[surface:] = share_of_colour(crop, behind, mix(colour, WATER, TINT))[surface:]
    above, below = slice(0, surface - 1), slice(surface + 2, None)
    leans = np.arange(-0.35, 0.36, 0.05)
    profiles = [_sheared(share, surface, lean) for lean in leans]
    sharpness = [(each[above].sum(axis=0) ** 2).sum() + (each[below].sum(axis=0) ** 2).sum() for each in profiles]
    upright = profiles[int(np.argmax(sharpness))]
    top, bottom = _smooth(upright[above].mean(axis=0)), _smooth(upright[below].mean(axis=0))
    centre = int(np.argmax(top))
    left, right = bottom[max(0, centre - 10) : max(0, centre - 5)], bottom[centre + 6 : centre + 11]
    aside = max(float(side.max()) if side.size else 0.0 for side in (left, right))
    straight = float(bottom[max(0, centre - 1) : centre + 2].max())
    return StickProfiles(float(top[centre]), max(straight, 0.0), max(aside, 1e-3))


def _sheared(share: Map, surface: int, lean: float) -> Map:
    """The map with each row moved so that a stick of this lean stands upright."""
    columns = np.arange(share.shape[1], dtype=np.float32)
    rows = [
        np.interp(columns + lean * (row - surface), columns, line, left=0, right=0) for row, line in enumerate(share)
    ]
    return np.asarray(rows, np.float32)


def _smooth(line: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.convolve(line, np.full(3, 1 / 3, np.float32), mode="same").astype(np.float32)


@dataclass(frozen=True, slots=True)
class FallOff:
    """How light fades along a crop, from its brighter end.

    ``gain`` is how much brighter the near end is in the light's strongest channel, as a share of the far end, the two
    sharpest steps left out, which may be the edge of the floor; ``tint`` is how much more it gains there than in the
    light's weakest channel, ``rise`` the largest growth away from the lamp, and ``step`` the largest drop from one
    pixel to the next as a part of the whole fall.
    """

    gain: float
    tint: float
    rise: float
    step: float


_DARK = 0.2
"""Brightness added to the far end before dividing by it, so that dark surfaces do not count for more."""


def fall_off(crop: Crop, light: Colour) -> FallOff:
    """Measures the fading of a light of this colour along the crop's longer side."""
    line = crop.mean(axis=0) if crop.shape[1] >= crop.shape[0] else crop.mean(axis=1)  # [n, 3]
    strong, weak = int(np.argmax(light)), int(np.argmin(light))
    if line[:3, strong].mean() < line[-3:, strong].mean():
        line = line[::-1]
    falls = line[:-1] - line[1:]  # [n - 1, 3]
    step = float(falls[:, strong].max())
    edges = np.argsort(np.abs(falls[:, strong]))[-2:]
    falls[edges] = np.median(falls, axis=0)
    gains = falls.sum(axis=0) / (line[-3:, strong].mean() + _DARK)
    gain = max(float(gains[strong]), 1e-3)
    lowest = np.minimum.accumulate(line[:, strong])
    rise = float((line[:, strong] - lowest).max())
    return FallOff(gain, float(gains[strong] - gains[weak]), rise, step / max(float(falls[:, strong].sum()), 1e-3))
