"""Reflection: where a thing at the water is removed, its mirror image goes as well."""

from __future__ import annotations

import numpy as np

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draft import Draft, Prompts
from physedit.data_loaders.scenes.draw import (
    SIZE,
    Colour,
    Dice,
    Picture,
    coverage,
    fade,
    mix,
    paint,
    rectangle,
    rgb,
)
from physedit.data_loaders.scenes.props import (
    SHAPES,
    Thing,
    colours_against,
    pad,
    paint_thing,
    random_thing,
    snap,
)
from physedit.data_loaders.scenes.questions import Question, ask

MIRRORED = 0.58
"""Share of the mirror image in what the water shows; the rest is the water's own colour."""

_GAP = 4.0
"""Clear bank in pixels beside each thing."""

_PLACES: tuple[tuple[str, str, str, str], ...] = (  # sky above, sky at the horizon, hill, water
    ("cfe3f5", "f3f0e6", "c3d3c4", "4f93ad"),
    ("f9d9c4", "fdf0dc", "d9b9b0", "6a80a8"),
    ("d9d3f0", "f6e6ee", "bdb6d6", "6c76b5"),
    ("d8efe8", "f7f3df", "b9d3b4", "45978c"),
)


def draw(dice: Dice) -> Draft:
    """One or two things on the bank of still water; the first is removed."""
    place = tuple(rgb(code) for code in dice.pick(_PLACES))
    shore = dice.whole(33, 37)
    things = _arrange(dice, place, shore, 2 if dice.happens(0.7) else 1)
    removed, others = things[0], things[1:]

    bank = _paint_bank(dice, place, shore)
    full, cleared = bank, bank
    for thing in things:
        full = paint_thing(full, thing)
    for thing in others:
        cleared = paint_thing(cleared, thing)
    source = _with_water(full, full, place[3], shore)
    physical = _with_water(cleared, cleared, place[3], shore)
    naive = _with_water(cleared, full, place[3], shore)
    name = removed.name
    prompts = Prompts(
        f"Remove the {name}.",
        f"Remove the {name} and its mirror image in the water.",
        f"Remove the {name}. Its mirror image must vanish too, so the water there shows only the sky and the hill.",
    )
    areas = (snap(pad(removed.bounds, 1)), snap(pad(mirrored(removed.bounds, shore), 1)))
    return Draft(source, physical, naive, prompts, areas, _questions(things, shore))


def mirrored(box: Box, shore: int) -> Box:
    """Where the mirror image of a box appears, as far as it lies in the picture."""
    top = 2 * shore - (box.y + box.height)
    return Box(box.x, top, box.width, min(box.height, SIZE - top))


def _arrange(dice: Dice, place: tuple[Colour, ...], shore: int, count: int) -> tuple[Thing, ...]:
    while True:
        things: list[Thing] = []
        colours = colours_against((*place[:3], mix(place[3], place[1], MIRRORED)), 0.35)
        for _ in range(count):
            free = tuple(colour for colour in colours if colour not in [thing.colour for thing in things])
            thing = random_thing(dice, shapes=SHAPES, colours=free, size=(12.5, 16.5))
            things.append(thing.at(dice.uniform(12, 52), shore))
        if count == 1 or abs(things[0].x - things[1].x) >= (things[0].width + things[1].width) / 2 + 2 * _GAP:
            return tuple(things)


def _paint_bank(dice: Dice, place: tuple[Colour, ...], shore: int) -> Picture:
    """Sky and a far hill, down to the row ``shore``."""
    sky = fade(place[0], place[1], 0, shore)
    top, middle = shore - dice.uniform(6, 11), dice.uniform(8, 56)
    wide = dice.uniform(900, 1600)
    hill = coverage(lambda x, y: (y >= top + (x - middle) ** 2 / wide * 8) & (y <= shore))
    return paint(sky, hill, place[2])


def _with_water(above: Picture, reflected: Picture, water: Colour, shore: int) -> Picture:
    """The picture with still water below the shore that mirrors ``reflected``."""
    image = above.copy()
    depth = SIZE - shore
    mirror = reflected[shore - depth : shore][::-1]  # row shore shows row shore - 1
    image[shore:] = mirror * np.float32(MIRRORED) + np.asarray(water, np.float32) * np.float32(1 - MIRRORED)
    line = rectangle(0, shore - 0.6, SIZE, shore + 0.6)
    return paint(image, line * np.float32(0.5), (1.0, 1.0, 1.0))


def _questions(things: tuple[Thing, ...], shore: int) -> tuple[Question, ...]:
    removed = things[0]
    questions = [
        ask("water_clear", _image_box(removed, shore), removed.name),
        ask("mirror_left", _image_box(removed, shore), removed.name),
        ask(
            "thing_gone",
            Box(
                removed.x - removed.width / 2 - 2, removed.base - removed.height - 2, removed.width + 4, removed.height
            ),
            removed.name,
        ),
    ]
    for thing in things[1:]:
        questions.append(ask("mirror_kept", _image_box(thing, shore), thing.name))
    return tuple(questions)


def _image_box(thing: Thing, shore: int) -> Box:
    """Around the mirror image, below the bright line of the shore."""
    return Box(thing.x - thing.width / 2 - 3, shore + 1, thing.width + 6, thing.height + 1)
