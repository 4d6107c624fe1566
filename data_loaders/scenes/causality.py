"""Causality: a thing whose support is removed drops straight down and rests on the floor."""

from __future__ import annotations

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draft import Draft, Prompts
from physedit.data_loaders.scenes.draw import Colour, Dice, Picture, mix, paint, rectangle, rgb
from physedit.data_loaders.scenes.props import (
    SHAPES,
    Thing,
    colours_against,
    pad,
    paint_room,
    paint_thing,
    random_room,
    random_thing,
    snap,
    union,
)
from physedit.data_loaders.scenes.questions import Question, ask

FALLS = (16, 24)
"""Heights of a stand in pixels."""

WOODS: tuple[Colour, ...] = (rgb("8a6a4f"), rgb("6f7480"), rgb("a5835e"))


def draw(dice: Dice) -> Draft:
    """A box or ball on a stand, sometimes beside another thing on the floor; the stand is removed."""
    room = random_room(dice, horizon=(30, 40))
    ground = (room.wall_top, room.wall_bottom, room.floor_far, room.floor_near)
    colours = colours_against(ground, 0.3)
    fall = dice.pick(FALLS)
    foot = dice.uniform(50, 60)
    held = random_thing(dice, shapes=("box", "ball"), colours=colours, size=(13, 16.5))
    held = held.at(dice.uniform(13, 51), foot - fall)
    beside: tuple[Thing, ...] = ()
    if dice.happens(0.6):
        rest = tuple(name for name in colours if name != held.colour)
        other = random_thing(dice, shapes=SHAPES, colours=rest, size=(11, 13))
        room_left, room_right = held.x - held.width / 2 - 6, held.x + held.width / 2 + 6
        low, high = (room_right + other.width / 2, 62 - other.width / 2)
        if held.x > 32:
            low, high = 2 + other.width / 2, room_left - other.width / 2
        beside = (other.at(dice.uniform(low, high), dice.uniform(50, 60)),)

    empty = paint_room(room)
    for thing in beside:
        empty = paint_thing(empty, thing)
    naive = paint_thing(empty, held)
    physical = paint_thing(empty, held.at(held.x, foot))
    source = paint_thing(_paint_stand(empty, dice.pick(WOODS), held, foot), held)
    name = held.name
    prompts = Prompts(
        "Remove the stand.",
        f"Remove the stand so that the {name} falls down.",
        f"Remove the stand. Nothing holds the {name} then, so it must fall straight down and rest on the floor.",
    )
    stand = Box(held.x - held.width / 2 - 2, held.base, held.width + 4, fall)
    areas = (snap(pad(union(held.bounds, stand), 1)),)
    return Draft(source, physical, naive, prompts, areas, _questions(held, foot, beside))


def _paint_stand(picture: Picture, wood: Colour, held: Thing, foot: float) -> Picture:
    half = held.width / 2
    light, dark = mix(wood, (1.0, 1.0, 1.0), 0.15), mix(wood, (0.0, 0.0, 0.0), 0.2)
    picture = paint(picture, rectangle(held.x - half + 3, held.base, held.x + half - 3, foot), wood)
    picture = paint(picture, rectangle(held.x, held.base, held.x + half - 3, foot), dark)
    picture = paint(picture, rectangle(held.x - half, foot - 2.5, held.x + half, foot), wood)
    return paint(picture, rectangle(held.x - half - 1.5, held.base, held.x + half + 1.5, held.base + 3), light)


def _questions(held: Thing, foot: float, beside: tuple[Thing, ...]) -> tuple[Question, ...]:
    fallen = held.at(held.x, foot)
    whole = union(held.bounds, fallen.bounds)
    free = min(held.base, foot - held.height - 1.5) - (held.base - held.height - 2)
    questions = [
        ask("thing_rests", pad(fallen.bounds, 3), held.name),
        ask("thing_hangs", Box(whole.x - 3, whole.y, whole.width + 6, whole.height + 2), held.name),
        ask(
            "thing_left", Box(held.x - held.width / 2 - 3, held.base - held.height - 2, held.width + 6, free), held.name
        ),
        ask("stand_gone", Box(held.x - held.width / 2 - 3, held.base, held.width + 6, foot - held.base), held.name),
    ]
    for thing in beside:
        questions.append(ask("thing_stays", pad(thing.bounds, 3), thing.name))
    return tuple(questions)
