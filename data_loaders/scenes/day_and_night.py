"""Global state: when night falls, the ground and all that stands on it darken with the sky."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draft import Draft, Prompts
from physedit.data_loaders.scenes.draw import (
    SIZE,
    Colour,
    Dice,
    Mask,
    coverage,
    disc,
    fade,
    mix,
    paint,
    rectangle,
    rgb,
)
from physedit.data_loaders.scenes.questions import Question, ask

NIGHT = (0.27, 0.31, 0.46)
"""Share of daylight left at night, by channel."""

_SKIES: tuple[tuple[str, str], ...] = (("8ec5f0", "dcefff"), ("a9d6ee", "fbeedb"), ("9fc0f2", "f6e3ee"))
_GROUNDS: tuple[tuple[str, str], ...] = (("8fc37a", "a7d48c"), ("d9c37e", "e6d598"), ("b4c46c", "c9d684"))
_WALLS: tuple[str, ...] = ("f2e3cf", "e9c9b4", "dfe3ea", "f0d98f")
_ROOFS: tuple[str, ...] = ("d0614f", "b8664a", "5f7fb8")
_LEAVES: tuple[str, ...] = ("4f9a57", "6aa84a", "3f8f74")


@dataclass(frozen=True, slots=True)
class Building:
    """What stands on the ground: its painted layers, a box well inside it, and one all around it."""

    layers: tuple[tuple[Mask, Colour], ...]
    face: Box
    around: Box


def draw(dice: Dice) -> Draft:
    """A house and a tree in daylight; it turns night."""
    horizon = dice.uniform(34, 42)
    sky_above, sky_below = (rgb(code) for code in dice.pick(_SKIES))
    sky = fade(sky_above, sky_below, 0, horizon)
    night_sky = fade(rgb("0e1638"), rgb("2b3566"), 0, horizon)
    side = dice.sign()
    sun_x, sun_y = 32 + side * dice.uniform(-6, 22), dice.uniform(8, 14)
    sun = disc(sun_x, sun_y, 5)
    day_sky = paint(sky, sun, rgb("ffe27a"))
    night_sky = paint(night_sky, sun, rgb("f1eedd"))

    land = rectangle(0, horizon, SIZE, SIZE)
    far, near = (rgb(code) for code in dice.pick(_GROUNDS))
    source = paint(day_sky, land, fade(far, near, horizon, SIZE))
    seen = land
    house = _house(dice, 32 - side * dice.uniform(10, 14), horizon)
    tree = _tree(dice, 32 + side * dice.uniform(12, 18), horizon)
    for mask, colour in house.layers + tree.layers:
        source = paint(source, mask, colour)
        seen = np.maximum(seen, mask)
    naive = paint(source, 1 - seen, night_sky)
    dark = source * np.asarray(NIGHT, np.float32)
    physical = paint(dark, 1 - seen, night_sky)
    prompts = Prompts(
        "Turn the day into night.",
        "Turn the day into night so that the ground is dark as well.",
        "Turn the day into night. The sky must be dark, and the ground, the house and the tree dark as well.",
    )
    return Draft(source, physical, naive, prompts, (), _questions(dice, house, tree))


def _house(dice: Dice, x: float, horizon: float) -> Building:
    base = horizon + dice.uniform(4, 9)
    half, tall, roof = dice.uniform(8, 10), dice.uniform(12, 15), dice.uniform(7, 9)
    eaves = base - tall
    wall, tiles = rgb(dice.pick(_WALLS)), rgb(dice.pick(_ROOFS))
    gable = coverage(lambda px, py: (py <= eaves) & (py >= eaves - roof + np.abs(px - x) * (roof / (half + 2.5))))
    door = rectangle(x - 2.5, base - 7, x + 2.5, base)
    layers = (
        (rectangle(x - half, eaves, x + half, base), wall),
        (gable, tiles),
        (door, mix(tiles, (0.2, 0.1, 0.1), 0.45)),
    )
    face = Box(x - half, eaves, 2 * half, base - eaves)
    return Building(layers, face, Box(x - half - 4, eaves - roof - 2, 2 * half + 8, tall + roof + 3))


def _tree(dice: Dice, x: float, horizon: float) -> Building:
    base = horizon + dice.uniform(5, 12)
    tall, half = dice.uniform(17, 21), dice.uniform(7, 8.5)
    leaves = rgb(dice.pick(_LEAVES))
    trunk = rectangle(x - 1.8, base - 7, x + 1.8, base)
    if dice.happens(0.5):
        crown = disc(x, base - tall + half, half + 0.5)
    else:
        crown = coverage(
            lambda px, py: (py <= base - 4) & (np.abs(px - x) <= (py - base + tall + 3) * (half / (tall - 1)))
        )
    face = Box(x - half / 2, base - tall + half / 2, half, half)
    return Building(((trunk, rgb("8a6247")), (crown, leaves)), face, Box(x - half, base - tall, 2 * half, tall))


def _questions(dice: Dice, house: Building, tree: Building) -> tuple[Question, ...]:
    questions = [
        ask("ground_dark", Box(2, SIZE - 8, SIZE - 4, 7)),
        ask("house_day", house.face),
        ask("tree_day", tree.face),
        ask("sky_dark", Box(0, 0, SIZE, 18)),
    ]
    if dice.happens(0.6):
        questions.append(ask("house_kept", house.around))
    return tuple(questions)
