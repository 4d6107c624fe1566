"""Refraction: in water a stick looks broken at the surface and shifted below it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draft import Draft, Prompts
from physedit.data_loaders.scenes.draw import SIZE, Dice, Mask, Picture, coverage, mix, paint, rectangle, rgb
from physedit.data_loaders.scenes.props import (
    COLOURS,
    Room,
    colours_against,
    paint_room,
    random_room,
    snap,
)
from physedit.data_loaders.scenes.questions import Question, ask

SHIFT = 8.0
"""How far below the surface the stick appears to the side, in pixels."""

WATER = rgb("4d9fd6")
TINT = 0.5
"""Share of the water's colour in what is seen through it."""

_GLASS = rgb("8fa9bd")


@dataclass(frozen=True, slots=True)
class Tank:
    """A glass tank; ``level`` is the row of the surface once it is filled."""

    left: float
    right: float
    top: float
    bottom: float
    level: int


@dataclass(frozen=True, slots=True)
class Stick:
    """A slanted stick through (x, level) that moves ``slope`` pixels sideways per row."""

    colour: str
    x: float
    slope: float
    level: float
    top: float
    bottom: float
    width: float


def draw(dice: Dice) -> Draft:
    """A stick stands in an empty tank; the tank is filled with water."""
    room = random_room(dice, horizon=(42, 50))
    level = dice.pick((24, 32))
    middle, half = dice.uniform(24, 40), dice.uniform(18, 20)
    tank = Tank(middle - half, middle + half, level - dice.uniform(7, 10), dice.uniform(56, 60), level)
    stick = _random_stick(dice, room, tank)

    empty = paint_room(room)
    whole = _paint_rod(empty, straight(stick), stick)
    above = rectangle(0, 0, SIZE, level)
    broken = np.maximum(straight(stick) * above, shifted(stick) * (1 - above))
    bent = _paint_rod(empty, broken, stick)
    source = _paint_glass(whole, tank)
    naive = _paint_glass(_fill(whole, tank), tank)
    physical = _paint_glass(_fill(bent, tank), tank)
    prompts = Prompts(
        "Fill the tank with water.",
        "Fill the tank with water so that the stick looks broken.",
        "Fill the tank with water. The stick must look broken at the surface, and its lower part must shift aside.",
    )
    areas = (snap(Box(tank.left - 1, level - 1, tank.right - tank.left + 2, tank.bottom - level + 2)),)
    return Draft(source, physical, naive, prompts, areas, _questions(dice, tank, stick))


def _random_stick(dice: Dice, room: Room, tank: Tank) -> Stick:
    lit = (room.wall_top, room.wall_bottom, room.floor_far, room.floor_near)
    wet = tuple(mix(ground, WATER, TINT) for ground in lit)
    colours = tuple(name for name in colours_against((*lit, *wet), 0.3) if name != "blue")
    slope = dice.sign() * dice.uniform(0.14, 0.26)
    bottom = tank.bottom - 1.5
    reach = SHIFT + abs(slope) * (bottom - tank.level)  # how far the shifted part runs from where the stick goes in
    lean = 1 if slope > 0 else -1
    middle = (tank.left + tank.right) / 2
    x = middle - lean * (reach / 2) + dice.uniform(-1.5, 1.5)
    return Stick(dice.pick(colours), x, slope, tank.level, dice.uniform(3, 6), bottom, dice.uniform(5.0, 6.0))


def straight(stick: Stick) -> Mask:
    """Coverage of the stick as it is."""
    return _rod(stick, 0.0)


def shifted(stick: Stick) -> Mask:
    """Coverage of the whole stick as it appears through water: moved along its lean."""
    return _rod(stick, SHIFT if stick.slope > 0 else -SHIFT)


def _rod(stick: Stick, shift: float) -> Mask:
    def inside(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
        off = x - (stick.x + shift + stick.slope * (y - stick.level))
        return (np.abs(off) <= stick.width / 2) & (y >= stick.top) & (y <= stick.bottom)

    return coverage(inside)


def _paint_rod(picture: Picture, mask: Mask, stick: Stick) -> Picture:
    return paint(picture, mask, COLOURS[stick.colour])


def _fill(picture: Picture, tank: Tank) -> Picture:
    water = rectangle(tank.left, tank.level, tank.right, tank.bottom)
    picture = paint(picture, water * np.float32(TINT), WATER)
    surface = rectangle(tank.left, tank.level, tank.right, tank.level + 1.5)
    return paint(picture, surface * np.float32(0.45), (1.0, 1.0, 1.0))


def _paint_glass(picture: Picture, tank: Tank) -> Picture:
    left, right, bottom = tank.left, tank.right, tank.bottom
    sides = rectangle(left - 1, tank.top, left + 1, bottom) + rectangle(right - 1, tank.top, right + 1, bottom)
    glass = np.clip(sides + rectangle(left - 1, bottom - 1, right + 1, bottom + 1), 0, 1)
    return paint(picture, glass * np.float32(0.8), _GLASS)


def _questions(dice: Dice, tank: Tank, stick: Stick) -> tuple[Question, ...]:
    left, width = tank.left + 1.5, tank.right - tank.left - 3
    questions = [
        ask("stick_broken", _around_surface(tank, tank.level + 7), stick.colour),
        ask("stick_straight", _around_surface(tank, tank.bottom - 3), stick.colour),
        ask("tank_filled", Box(left, tank.level - 6, width, 14)),
    ]
    if dice.happens(0.8):
        middle = stick.x - stick.slope * (tank.level - stick.top) / 2
        above = Box(middle - 8, stick.top + 2, 16, tank.level - stick.top - 4)
        questions.append(ask("stick_kept", above, stick.colour))
    return tuple(questions)


def _around_surface(tank: Tank, bottom: float) -> Box:
    """The inside of the tank from seven rows above the surface down to the row ``bottom``."""
    left, right = float(np.ceil(tank.left + 1.5)), float(np.floor(tank.right - 1.5))
    return Box(left, tank.level - 7, right - left, bottom - tank.level + 7)
