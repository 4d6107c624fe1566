"""Light source effects: a lamp that is switched on tints everything around it."""

from __future__ import annotations

import numpy as np

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draft import Draft, Prompts
from physedit.data_loaders.scenes.draw import (
    PIXEL_X,
    PIXEL_Y,
    SIZE,
    Colour,
    Dice,
    Mask,
    Picture,
    disc,
    mix,
    paint,
    rectangle,
    rgb,
)
from physedit.data_loaders.scenes.props import (
    SHAPES,
    Thing,
    pad,
    paint_room,
    paint_thing,
    random_room,
    random_thing,
    snap,
)
from physedit.data_loaders.scenes.questions import Question, ask

DUSK = (0.37, 0.38, 0.44)
"""Share of daylight left in the dark room, by channel."""

REACH = 34.0
"""Radius in pixels at which the lamp's light ends."""

_GAIN = 1.1
"""How much of itself a surface gains beside the lamp."""

_HAZE = 0.2
"""How much plain light is added beside the lamp, so that dark things are tinted as well."""

_BULB = 5.5
"""Radius of the bulb in pixels."""

LIGHTS: dict[str, Colour] = {
    "yellow": rgb("ffcf5c"),
    "red": rgb("ff5a4a"),
    "blue": rgb("5a92ff"),
    "green": rgb("58e07c"),
    "purple": rgb("bb6cff"),
}


def draw(dice: Dice) -> Draft:
    """A dark room with a lamp and a thing on the floor; the lamp is switched on."""
    room = random_room(dice, horizon=(38, 46))
    colour = dice.pick(tuple(LIGHTS))
    x, y = dice.uniform(14, 50), dice.uniform(15, 28)
    hanging = dice.happens(0.5)
    side = 1 if x < 32 else -1
    thing = random_thing(dice, shapes=SHAPES, colours=("red", "blue", "green", "yellow", "purple"), size=(12, 15))
    thing = thing.at(x + side * dice.uniform(12, 17), dice.uniform(48, 58))

    dark = paint_thing(paint_room(room), thing) * np.asarray(DUSK, np.float32)
    dark = _paint_holder(dark, x, y, dice.uniform(54, 60), hanging=hanging)
    bulb = disc(x, y, _BULB)
    light = LIGHTS[colour]
    source = paint(dark, bulb, mix(light, (0.12, 0.12, 0.16), 0.5))
    lit = mix(light, (1.0, 1.0, 1.0), 0.72)
    naive = paint(dark, bulb, lit)
    physical = paint(_shine(dark, x, y, light), bulb, lit)
    prompts = Prompts(
        f"Switch on the {colour} lamp.",
        f"Switch on the {colour} lamp so that it lights the room.",
        f"Switch on the {colour} lamp. Its {colour} light must fall on the wall, the floor and all things around it.",
    )
    areas = (snap(pad(Box(x - REACH, y - REACH, 2 * REACH, 2 * REACH), 0)),)
    return Draft(source, physical, naive, prompts, areas, _questions(dice, colour, x, y, thing))


def _paint_holder(picture: Picture, x: float, y: float, foot: float, *, hanging: bool) -> Picture:
    iron = (0.13, 0.13, 0.16)
    if hanging:
        return paint(picture, rectangle(x - 0.9, 0, x + 0.9, y), iron)
    picture = paint(picture, rectangle(x - 1.1, y, x + 1.1, foot), iron)
    return paint(picture, rectangle(x - 5, foot - 2, x + 5, foot), iron)


def glow(x: float, y: float) -> Mask:
    """Strength of the lamp's light, 1 at the lamp and 0 from ``REACH`` on, with a smooth end."""
    away = ((PIXEL_X - np.float32(x)) ** 2 + (PIXEL_Y - np.float32(y)) ** 2) / np.float32(REACH * REACH)
    near = np.clip(1 - away, 0, 1)
    strength: Mask = near * near
    return strength


def _shine(picture: Picture, x: float, y: float, light: Colour) -> Picture:
    strength = glow(x, y)[:, :, None]
    colour = np.asarray(light, np.float32)
    lit: Picture = np.clip(
        picture * (1 + np.float32(_GAIN) * strength * colour) + np.float32(_HAZE) * strength * colour, 0, 1
    )
    return lit


def _questions(dice: Dice, colour: str, x: float, y: float, thing: Thing) -> tuple[Question, ...]:
    side = 1 if x < SIZE / 2 else -1
    questions = [
        ask("light_beside", _toward(x, side, 9.5, 27, y - 6, y + 2), colour),
        ask("light_above", _toward(x, side, 2.5, 24, y - 12, y - 7), colour),
        ask("light_below", _toward(x, -side, 2, 7, y + 7, y + 22), colour),
        ask("lamp_lit", Box(x - 4, y - 4, 8, 8)),
    ]
    if dice.happens(0.6):
        questions.append(ask("thing_kept", pad(thing.bounds, 2), thing.name))
    return tuple(questions)


def _toward(x: float, side: int, near: float, far: float, top: float, bottom: float) -> Box:
    """The rows from top to bottom, from ``near`` to ``far`` pixels to one side of the lamp."""
    left = x + near if side > 0 else x - far
    return Box(left, top, far - near, bottom - top)
