"""The table of questions: what each asks, whether it is about physics, which rule answers it, and the right answer.

Scenes ask from this table and the rule judge reads it, so the two cannot drift apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draw import SIZE

QuestionKind = Literal["physics", "semantic"]
RuleName = Literal[
    "clean_floor",
    "shadow",
    "no_colour",
    "clean_water",
    "mirror_image",
    "broken_stick",
    "standing_stick",
    "water",
    "glow",
    "glow_on_floor",
    "thing_in_room",
    "lit_bulb",
    "whole_thing",
    "dropped",
    "left",
    "no_stand",
    "dark_ground",
    "dark_house",
    "dark_tree",
    "house",
    "dark_sky",
]

FRAME = 1024
"""Long side of the frame that question boxes are stated in, as in PICABench."""


@dataclass(frozen=True, slots=True)
class Question:
    """A yes/no question about one region. ``answer`` is ``Yes`` or ``No``; ``box`` is in the 1024-pixel frame."""

    text: str
    answer: str
    box: Box


@dataclass(frozen=True, slots=True)
class Template:
    """One row of the table. ``answer`` is the right one in every scene, and holds exactly when the rule does.

    ``text`` may name a ``{thing}``, such as ``red box``, or a ``{colour}``.
    """

    text: str
    kind: QuestionKind
    rule: RuleName
    answer: Literal["Yes", "No"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A question's text as understood: its template and the colour and shape that it names, if any."""

    template: Template
    colour: str | None
    shape: str | None


TEMPLATES: dict[str, Template] = {
    "floor_lit": Template(
        "Is the floor evenly lit where the shadow of the {thing} fell?", "physics", "clean_floor", "Yes"
    ),
    "shadow_left": Template("Is a shadow of the {thing} left on the floor?", "physics", "clean_floor", "No"),
    "shadow_kept": Template("Does the {thing} still cast a shadow?", "physics", "shadow", "Yes"),
    "thing_gone": Template("Is the {thing} gone?", "semantic", "no_colour", "Yes"),
    "water_clear": Template(
        "Does the water show only sky and hill where the {thing} was mirrored?", "physics", "clean_water", "Yes"
    ),
    "mirror_left": Template("Is a mirror image of the {thing} left in the water?", "physics", "clean_water", "No"),
    "mirror_kept": Template("Is the {thing} still mirrored in the water?", "physics", "mirror_image", "Yes"),
    "stick_broken": Template(
        "Does the {colour} stick look broken at the surface of the water?", "physics", "broken_stick", "Yes"
    ),
    "stick_straight": Template(
        "Does the {colour} stick run on in one straight line below the water?", "physics", "broken_stick", "No"
    ),
    "stick_kept": Template("Does the {colour} stick still stand out of the tank?", "physics", "standing_stick", "Yes"),
    "tank_filled": Template("Is there water in the tank?", "semantic", "water", "Yes"),
    "light_beside": Template("Does {colour} light fall on the wall beside the lamp?", "physics", "glow", "Yes"),
    "light_above": Template(
        "Is the wall above the lamp as dark as before, without {colour} light?", "physics", "glow", "No"
    ),
    "light_below": Template(
        "Does {colour} light spread below the lamp and fade with distance?", "physics", "glow_on_floor", "Yes"
    ),
    "thing_kept": Template("Is the {thing} still in the room?", "physics", "thing_in_room", "Yes"),
    "lamp_lit": Template("Is the lamp lit?", "semantic", "lit_bulb", "Yes"),
    "thing_rests": Template("Does the {thing} rest on the floor in one piece?", "physics", "whole_thing", "Yes"),
    "thing_hangs": Template("Does the {thing} hang in the air?", "physics", "dropped", "No"),
    "thing_left": Template("Is the place where the {thing} stood empty?", "physics", "left", "Yes"),
    "thing_stays": Template("Does the {thing} still stand in its place?", "physics", "whole_thing", "Yes"),
    "stand_gone": Template("Is the stand under the {thing} gone?", "semantic", "no_stand", "Yes"),
    "ground_dark": Template("Is the ground dark as well?", "physics", "dark_ground", "Yes"),
    "house_day": Template("Is the house still in daylight?", "physics", "dark_house", "No"),
    "tree_day": Template("Is the tree as bright as by day?", "physics", "dark_tree", "No"),
    "house_kept": Template("Is the house still there?", "physics", "house", "Yes"),
    "sky_dark": Template("Is the sky dark?", "semantic", "dark_sky", "Yes"),
}
"""Every question that scenes ask, by key."""


def _pattern(template: Template) -> re.Pattern[str]:
    text = re.escape(template.text)
    text = text.replace(r"\{thing\}", r"(?P<colour>[a-z]+) (?P<shape>[a-z]+)")
    return re.compile(text.replace(r"\{colour\}", r"(?P<colour>[a-z]+)"))


_PATTERNS = tuple((template, _pattern(template)) for template in TEMPLATES.values())


def ask(key: str, box: Box, name: str = "") -> Question:
    """The question of a template about a region in pixels of the 64-pixel picture.

    Args:
        key: key of the template.
        box: the region; it is widened to whole pixels and cut at the border.
        name: what the template's ``{thing}`` or ``{colour}`` stands for.
    """
    template = TEMPLATES[key]
    left, top = np.floor(max(0.0, box.x)), np.floor(max(0.0, box.y))
    right, bottom = np.ceil(min(SIZE, box.x + box.width)), np.ceil(min(SIZE, box.y + box.height))
    scale = FRAME / SIZE
    region = Box(*(float(edge * scale) for edge in (left, top, right - left, bottom - top)))
    return Question(template.text.format(thing=name, colour=name), template.answer, region)


def read_question(text: str) -> Reading | None:
    """The template that a text was made from, with the names in it; None if the table has none."""
    for template, pattern in _PATTERNS:
        found = pattern.fullmatch(text)
        if found:
            names = found.groupdict()
            return Reading(template, names.get("colour"), names.get("shape"))
    return None


def kind_of(text: str) -> QuestionKind:
    """Whether a question asks about physics or only whether the edit was done.

    Raises:
        ValueError: the table has no such question.
    """
    reading = read_question(text)
    if reading is None:
        raise ValueError(f"question {text!r} is not one of the embedded world's; see TEMPLATES in questions.py")
    return reading.template.kind
