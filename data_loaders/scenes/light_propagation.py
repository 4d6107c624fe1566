"""Light propagation: where a thing is removed, the shadow that it cast goes as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draft import Draft, Prompts
from physedit.data_loaders.scenes.draw import Dice, Mask, Picture, coverage, paint
from physedit.data_loaders.scenes.props import (
    SHAPES,
    Room,
    Thing,
    colours_against,
    inside_thing,
    overlap,
    pad,
    paint_room,
    paint_thing,
    random_room,
    random_thing,
    snap,
)
from physedit.data_loaders.scenes.questions import Question, ask

SHADOW = 0.52
"""Brightness of a shadowed floor, as a share of the lit floor."""

_GAP = 2.5
"""Clear floor in pixels around each thing with its shadow."""
_TRIES = 200
"""Placements of one pair of things before other things are drawn."""


@dataclass(frozen=True, slots=True)
class Sun:
    """A point at height h throws its shadow ``across * h`` pixels sideways and ``down * h`` pixels down the picture."""

    across: float
    down: float


def draw(dice: Dice) -> Draft:
    """One or two things under a low sun; the first is removed."""
    room = random_room(dice, horizon=(17, 23))
    sun = Sun(dice.sign() * dice.uniform(0.85, 1.2), dice.uniform(0.45, 0.6))
    things = _arrange(dice, room, sun, 2 if dice.happens(0.7) else 1)
    removed, others = things[0], things[1:]

    empty = paint_room(room)
    kept = _with_shadows(empty, others, sun)
    source = _with_shadows(empty, things, sun)
    physical, naive = kept, source
    for thing in others:
        physical, naive = paint_thing(physical, thing), paint_thing(naive, thing)
    for thing in sorted(things, key=lambda each: each.base):
        source = paint_thing(source, thing)
    name = removed.name
    prompts = Prompts(
        f"Remove the {name}.",
        f"Remove the {name} and the shadow it casts.",
        f"Remove the {name}. Its shadow on the floor must vanish too, so the light falls evenly on the floor there.",
    )
    areas = (snap(pad(removed.bounds, 1)), snap(pad(shadow_bounds(removed, sun), 1)))
    return Draft(source, physical, naive, prompts, areas, _questions(things, sun))


def _arrange(dice: Dice, room: Room, sun: Sun, count: int) -> tuple[Thing, ...]:
    """Places things so that each keeps clear of the others and of their shadows."""
    colours = colours_against((room.wall_top, room.wall_bottom, room.floor_far, room.floor_near), 0.3)
    size = (13.0, 17.0) if count == 1 else (11.5, 14.0)
    first = random_thing(dice, shapes=SHAPES, colours=colours, size=size)
    if count == 1:
        return (_place(dice, room, sun, first),)
    while True:
        free = tuple(colour for colour in colours if colour != first.colour)
        second = random_thing(dice, shapes=SHAPES, colours=free, size=size)
        for _ in range(_TRIES):
            first, second = _place(dice, room, sun, first), _place(dice, room, sun, second)
            if not _crowded(first, second, sun):
                return (first, second)
        # Some pairs fit nowhere, such as two broad things under a low sun: about one pair in three hundred.
        first = random_thing(dice, shapes=SHAPES, colours=colours, size=size)


def _place(dice: Dice, room: Room, sun: Sun, thing: Thing) -> Thing:
    """The thing at a spot where it and its shadow lie in the picture and on the floor."""
    half, slide = thing.width / 2, sun.across * thing.height
    x = dice.uniform(4 + half + max(0.0, -slide), 60 - half - max(0.0, slide))
    return thing.at(x, dice.uniform(room.horizon + 8, 60 - sun.down * thing.height))


def _crowded(first: Thing, second: Thing, sun: Sun) -> bool:
    return any(
        overlap(pad(one, _GAP), pad(other, _GAP))
        for one in (first.bounds, shadow_bounds(first, sun))
        for other in (second.bounds, shadow_bounds(second, sun))
    )


def shadow_bounds(thing: Thing, sun: Sun) -> Box:
    """A rectangle around the thing's shadow."""
    slide = sun.across * thing.height
    left = thing.x - thing.width / 2 + min(0.0, slide)
    return Box(left, thing.base, thing.width + abs(slide), sun.down * thing.height)


def shadow(thing: Thing, sun: Sun) -> Mask:
    """Coverage of the floor that the thing keeps the sun from."""

    def inside(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.bool_]:
        height = (y - thing.base) / sun.down
        return inside_thing(thing, x - sun.across * height, thing.base - height)

    return coverage(inside)


def _with_shadows(picture: Picture, things: tuple[Thing, ...], sun: Sun) -> Picture:
    for thing in things:
        picture = paint(picture, shadow(thing, sun), picture * np.float32(SHADOW))
    return picture


def _questions(things: tuple[Thing, ...], sun: Sun) -> tuple[Question, ...]:
    removed, fell = things[0], pad(shadow_bounds(things[0], sun), 2.5)
    questions = [
        ask("floor_lit", fell, removed.name),
        ask("shadow_left", fell, removed.name),
        ask("thing_gone", pad(removed.bounds, 2), removed.name),
    ]
    for thing in things[1:]:
        questions.append(ask("shadow_kept", pad(shadow_bounds(thing, sun), 2.5), thing.name))
    return tuple(questions)
