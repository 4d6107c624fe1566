"""What the scenes are furnished with: coloured things, rooms and outdoor grounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draw import (
    PIXEL_X,
    PIXEL_Y,
    SIZE,
    Colour,
    Dice,
    Mask,
    Picture,
    contrast,
    coverage,
    fade,
    paint,
    rectangle,
    rgb,
)

ShapeName = Literal["box", "ball", "cone"]
SHAPES: tuple[ShapeName, ...] = ("box", "ball", "cone")

COLOURS: dict[str, Colour] = {
    "red": rgb("e2504c"),
    "blue": rgb("3f74d6"),
    "green": rgb("3fa65c"),
    "yellow": rgb("f4c430"),
    "purple": rgb("9355c4"),
}
"""Colours that prompts and questions name."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A coloured box, ball or cone. ``x`` is its middle, ``base`` the row it stands on, in pixels."""

    shape: ShapeName
    colour: str
    x: float
    base: float
    width: float
    height: float

    @property
    def name(self) -> str:
        """What prompts and questions call it, such as ``red box``."""
        return f"{self.colour} {self.shape}"

    @property
    def bounds(self) -> Box:
        """The smallest rectangle around it."""
        return Box(self.x - self.width / 2, self.base - self.height, self.width, self.height)

    def at(self, x: float, base: float) -> Thing:
        """The same thing at another place."""
        return replace(self, x=x, base=base)


@dataclass(frozen=True, slots=True)
class Room:
    """Colours of a wall and a floor; ``horizon`` is the row where they meet."""

    wall_top: Colour
    wall_bottom: Colour
    floor_far: Colour
    floor_near: Colour
    horizon: float


_ROOMS: tuple[tuple[str, str, str, str], ...] = (
    ("f6e7d8", "f2d9c4", "d9b48f", "e6c6a4"),
    ("dfeaf4", "c9dcec", "b9c4cf", "cdd6de"),
    ("e7f0e2", "d2e3cb", "c9bfa3", "d9d0b8"),
    ("efe4f2", "dccbe6", "c4b3d4", "d5c8e2"),
    ("fbeeda", "f5dfc0", "b8cdbb", "cbddcc"),
    ("e3eef0", "cfe2e6", "e0cdb4", "ecdcc6"),
)


def random_room(dice: Dice, *, horizon: tuple[float, float]) -> Room:
    """A room in one of six soft palettes, its horizon drawn from the range."""
    wall_top, wall_bottom, floor_far, floor_near = (rgb(code) for code in dice.pick(_ROOMS))
    return Room(wall_top, wall_bottom, floor_far, floor_near, dice.uniform(*horizon))


def paint_room(room: Room) -> Picture:
    """The empty room."""
    wall = fade(room.wall_top, room.wall_bottom, 0, room.horizon)
    floor = fade(room.floor_far, room.floor_near, room.horizon, SIZE)
    return paint(wall, rectangle(0, room.horizon, SIZE, SIZE), floor)


def random_thing(
    dice: Dice, *, shapes: tuple[ShapeName, ...], colours: tuple[str, ...], size: tuple[float, float]
) -> Thing:
    """A thing at the origin; ``size`` is the range of its width; cones are a little wider, to weigh the same."""
    shape = dice.pick(shapes)
    width = dice.uniform(*size) * (1.15 if shape == "cone" else 1.0)
    stretch = {"box": dice.uniform(0.95, 1.25), "ball": 1.0, "cone": dice.uniform(1.0, 1.2)}[shape]
    return Thing(shape, dice.pick(colours), 0.0, 0.0, width, width * stretch)


def colours_against(backgrounds: tuple[Colour, ...], least: float) -> tuple[str, ...]:
    """The named colours that differ from every background by at least this much in some channel."""
    return tuple(
        name for name, colour in COLOURS.items() if all(contrast(colour, ground) >= least for ground in backgrounds)
    )


def inside_thing(thing: Thing, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which points lie in the thing's outline."""
    up = thing.base - y
    off = np.abs(x - thing.x)
    hits: NDArray[np.bool_]
    if thing.shape == "ball":
        hits = (off / (thing.width / 2)) ** 2 + (up / (thing.height / 2) - 1) ** 2 <= 1
    elif thing.shape == "box":
        hits = (up >= 0) & (up <= thing.height) & (off <= thing.width / 2)
    else:
        hits = (up >= 0) & (up <= thing.height) & (off <= thing.width / 2 * (1 - up / thing.height))
    return hits


def outline(thing: Thing) -> Mask:
    """Coverage of the thing."""
    return coverage(lambda x, y: inside_thing(thing, x, y))


def paint_thing(picture: Picture, thing: Thing) -> Picture:
    """A copy of the picture with the thing, softly shaded so that its shape is plain."""
    colour = np.asarray(COLOURS[thing.colour], np.float32)
    shine = _shading(thing)[:, :, None]  # [64, 64, 1], 1 is the plain colour
    bright = colour + (1 - colour) * np.clip(shine - 1, 0, 1)
    return paint(picture, outline(thing), bright * np.clip(shine, 0, 1))


def _shading(thing: Thing) -> Mask:
    across = (PIXEL_X - np.float32(thing.x)) / np.float32(thing.width / 2)  # -1 .. 1
    up = (np.float32(thing.base) - PIXEL_Y) / np.float32(thing.height)  # 0 .. 1
    shine: Mask
    if thing.shape == "ball":
        away = (across + np.float32(0.3)) ** 2 + (up * 2 - np.float32(1.35)) ** 2
        shine = np.float32(1.3) - np.float32(0.24) * away
    elif thing.shape == "cone":
        shine = np.float32(1.06) - np.float32(0.24) * across
    else:
        lid = np.clip((up * np.float32(thing.height) - np.float32(thing.height - 3.0)) + np.float32(0.5), 0, 1)
        shine = np.float32(0.9) + np.float32(0.1) * up + np.float32(0.3) * lid
    return shine


def pad(box: Box, margin: float) -> Box:
    """The box grown by a margin on all sides and cut at the picture's border."""
    left, top = max(0.0, box.x - margin), max(0.0, box.y - margin)
    right = min(float(SIZE), box.x + box.width + margin)
    bottom = min(float(SIZE), box.y + box.height + margin)
    return Box(left, top, right - left, bottom - top)


def union(one: Box, other: Box) -> Box:
    """The smallest box around both."""
    left, top = min(one.x, other.x), min(one.y, other.y)
    right = max(one.x + one.width, other.x + other.width)
    bottom = max(one.y + one.height, other.y + other.height)
    return Box(left, top, right - left, bottom - top)


def overlap(one: Box, other: Box) -> bool:
    """Whether the two boxes share any area."""
    apart_x = one.x + one.width <= other.x or other.x + other.width <= one.x
    apart_y = one.y + one.height <= other.y or other.y + other.height <= one.y
    return not (apart_x or apart_y)


def snap(box: Box) -> Box:
    """The smallest box of whole pixels around this one."""
    left, top = int(np.floor(box.x)), int(np.floor(box.y))
    right, bottom = int(np.ceil(box.x + box.width)), int(np.ceil(box.y + box.height))
    return Box(float(left), float(top), float(right - left), float(bottom - top))
