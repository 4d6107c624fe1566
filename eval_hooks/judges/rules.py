"""The rules that answer the embedded world's questions, one for each rule name of the question table.

A rule sees one crop and the colour and shape that the question names, nothing else: no target, no seed, no file name.
It is a list of checks, each a measured number against a limit; the rule holds if every check does. Limits were set
between true targets with noise or blur on one side, and naive targets, half-way mixtures and smears on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from physedit.data_loaders.scenes.causality import WOODS
from physedit.data_loaders.scenes.light_source import LIGHTS
from physedit.data_loaders.scenes.props import COLOURS
from physedit.data_loaders.scenes.questions import Reading, RuleName
from physedit.eval_hooks.judges.forms import LEAST_WATER_STEP, fall_off, outline_of, stick_profiles, water_step
from physedit.eval_hooks.judges.measures import (
    Crop,
    Map,
    background,
    closeness,
    colour_excess,
    deviation,
    distance_to_nearest,
    luminance,
    patches,
    share_of_colour,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One measured number and the range that it must lie in."""

    what: str
    value: float
    least: float = -np.inf
    most: float = np.inf

    @property
    def holds(self) -> bool:
        """Whether the number lies in its range."""
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        limits = [f"at least {self.least:.2f}"] if np.isfinite(self.least) else []
        limits += [f"at most {self.most:.2f}"] if np.isfinite(self.most) else []
        return f"{self.what} {self.value:.2f} ({' and '.join(limits)}{'' if self.holds else ', failed'})"


Rule = Callable[[Crop, Reading], list[Check]]


def _clean_floor(crop: Crop, _reading: Reading) -> list[Check]:
    behind = background(crop)
    ratio = patches(_brightness_ratio(crop, behind))
    return [
        Check("darkest patch as a share of the floor", float(ratio.min()), least=0.88),
        Check("brightest patch as a share of the floor", float(ratio.max()), most=1.12),
        Check("largest difference from the floor's colour", float(patches(deviation(crop, behind)).max()), most=0.12),
    ]


def _brightness_ratio(crop: Crop, behind: Crop) -> Map:
    ratio: Map = np.asarray(luminance(crop) / np.maximum(luminance(behind), 0.02), np.float32)
    return ratio


def _shadow(crop: Crop, _reading: Reading) -> list[Check]:
    ratio = _brightness_ratio(crop, background(crop))
    return [
        Check("darkest patch as a share of the floor", float(patches(ratio).min()), most=0.68),
        Check("part of the box in shadow", float((ratio < 0.8).mean()), least=0.07),
    ]


def _no_colour(crop: Crop, reading: Reading) -> list[Check]:
    share = float((colour_excess(crop, COLOURS[_colour(reading)]) >= 0.5).mean())
    return [Check(f"part of the box in {reading.colour}", share, most=0.06)]


def _clean_water(crop: Crop, reading: Reading) -> list[Check]:
    behind = background(crop)
    share = patches(share_of_colour(crop, behind, COLOURS[_colour(reading)]))
    return [
        Check(f"strongest trace of {reading.colour}", float(share.max()), most=0.28),
        Check("largest difference from the water beside", float(patches(deviation(crop, behind)).max()), most=0.12),
    ]


def _mirror_image(crop: Crop, reading: Reading) -> list[Check]:
    share = share_of_colour(crop, background(crop), COLOURS[_colour(reading)])
    return [
        Check(f"strongest patch of {reading.colour}", float(patches(share).max()), least=0.4),
        Check("part of the box with the mirror image", float((share >= 0.3).mean()), least=0.2),
    ]


def _broken_stick(crop: Crop, reading: Reading) -> list[Check]:
    profiles = stick_profiles(crop, COLOURS[_colour(reading)])
    if profiles is None:
        return [Check("step of the water's surface", water_step(crop)[1], least=LEAST_WATER_STEP)]
    return [
        Check("stick above the surface", profiles.above, least=0.6),
        Check("stick 6 to 10 pixels aside below the surface", profiles.aside, least=0.65),
        Check("stick straight on below the surface, against that", profiles.straight / profiles.aside, most=0.4),
    ]


def _standing_stick(crop: Crop, reading: Reading) -> list[Check]:
    share = patches(share_of_colour(crop, background(crop), COLOURS[_colour(reading)]))
    return [Check("part of the rows that the stick crosses", float((share.max(axis=1) >= 0.6).mean()), least=0.9)]


def _water(crop: Crop, _reading: Reading) -> list[Check]:
    return [Check("step of blue at the surface", water_step(crop)[1], least=LEAST_WATER_STEP)]


def _glow(crop: Crop, reading: Reading) -> list[Check]:
    fall = fall_off(crop, LIGHTS[_colour(reading)])
    return [
        Check("gain from the far end to the lamp", fall.gain, least=0.37),
        Check(f"gain of {reading.colour} over the other light", fall.tint, least=0.04),
        Check("largest rise away from the lamp", fall.rise, most=0.04),
        Check("largest step between neighbours, as a part of the gain", fall.step, most=0.25),
    ]


def _glow_on_floor(crop: Crop, reading: Reading) -> list[Check]:
    fall = fall_off(crop, LIGHTS[_colour(reading)])
    return [
        Check("gain from the far end to the lamp", fall.gain, least=0.315),
        Check("largest rise away from the lamp", fall.rise, most=0.06),
    ]


def _thing_in_room(crop: Crop, _reading: Reading) -> list[Check]:
    behind = background(crop)
    contrast = deviation(crop, behind) / np.maximum(luminance(behind).mean(), 0.02)
    return [
        Check("contrast with the room", float(patches(contrast).max()), least=0.3),
        Check("part of the box with the thing", float((contrast >= 0.15).mean()), least=0.2),
    ]


def _lit_bulb(crop: Crop, _reading: Reading) -> list[Check]:
    return [Check("brightness", float(luminance(crop).mean()), least=0.7)]


_FREE = 3
"""Free pixels that boxes leave on every side of a thing that should stand in them."""


def _whole_thing(crop: Crop, reading: Reading) -> list[Check]:
    behind, colour, shape = background(crop), COLOURS[_colour(reading)], reading.shape or "box"
    share = closeness(crop, behind, colour)
    # A box is plain below its lid. On a pale floor its lid would pass for a half transparent face.
    inner = closeness(crop, behind, colour, shine=0.05) if shape == "box" else share
    found = outline_of(share, inner, shape)
    if found is None:
        return [Check(f"part of the box in {reading.colour}", float((share >= 0.5).mean()), least=0.2)]
    height, width = (max(side - 2 * _FREE, 1) for side in share.shape)
    return [
        # A second copy on top of it reaches the upper edge.
        Check("rows between the box's upper edge and it", found.top, least=1.0),
        Check("rows between it and the box's lower edge", share.shape[0] - found.bottom, least=1.5, most=5.5),
        Check("its width against the expected", found.width / width, least=0.7, most=1.3),
        Check("its height against the expected", found.height / height, least=0.7, most=1.3),
        Check(f"overlap with a whole {shape}", found.fit, least=0.64 if shape == "cone" else 0.82),
        Check("solidity of its middle", found.solid, least=0.72),
        Check("blur of its edge in pixels", found.edge, most=1.6),
    ]


def _dropped(crop: Crop, reading: Reading) -> list[Check]:
    share = patches(closeness(crop, background(crop), COLOURS[_colour(reading)]))
    third = share.shape[0] // 3
    return [
        Check(f"strongest {reading.colour} in the upper third", float(share[:third].max()), most=0.3),
        Check(f"strongest {reading.colour} in the lower third", float(share[-third:].max()), least=0.75),
    ]


def _left(crop: Crop, reading: Reading) -> list[Check]:
    behind = background(crop)
    share = patches(share_of_colour(crop, behind, COLOURS[_colour(reading)]))
    return [
        Check(f"strongest trace of {reading.colour}", float(share.max()), most=0.25),
        Check("largest difference from the room behind", float(patches(deviation(crop, behind)).max()), most=0.17),
    ]


def _no_stand(crop: Crop, reading: Reading) -> list[Check]:
    wood = distance_to_nearest(crop, [np.multiply(wood, shade) for wood in WOODS for shade in (0.8, 1.0, 1.15)])
    behind, colour = background(crop), np.asarray(COLOURS[_colour(reading)], np.float32)
    thing = [colour * 0.8, colour, colour + (1 - colour) * 0.3]
    other = distance_to_nearest(
        crop, [behind + (shade - behind) * mix for shade in thing for mix in (0.0, 0.3, 0.6, 1.0)]
    )
    stand = (wood < 0.12) & (wood < other)
    return [Check("part of the box that looks like the stand", float(stand.mean()), most=0.12)]


def _dark(what: str, limit: float) -> Rule:
    def rule(crop: Crop, _reading: Reading) -> list[Check]:
        return [Check(f"brightness of the {what}", float(np.median(luminance(crop))), most=limit)]

    return rule


def _house(crop: Crop, _reading: Reading) -> list[Check]:
    low, high = np.percentile(luminance(crop), (10, 90))
    return [
        Check("contrast of the house and its surroundings", float(2 * (high - low) / max(high + low, 0.02)), least=0.3)
    ]


def _colour(reading: Reading) -> str:
    if reading.colour is None:
        raise ValueError(f"rule {reading.template.rule} needs a colour, but {reading.template.text!r} names none")
    return reading.colour


RULES: dict[RuleName, Rule] = {
    "clean_floor": _clean_floor,
    "shadow": _shadow,
    "no_colour": _no_colour,
    "clean_water": _clean_water,
    "mirror_image": _mirror_image,
    "broken_stick": _broken_stick,
    "standing_stick": _standing_stick,
    "water": _water,
    "glow": _glow,
    "glow_on_floor": _glow_on_floor,
    "thing_in_room": _thing_in_room,
    "lit_bulb": _lit_bulb,
    "whole_thing": _whole_thing,
    "dropped": _dropped,
    "left": _left,
    "no_stand": _no_stand,
    "dark_ground": _dark("ground", 0.36),
    "dark_house": _dark("house", 0.38),
    "dark_tree": _dark("tree", 0.24),
    "house": _house,
    "dark_sky": _dark("sky", 0.3),
}
"""A rule for every rule name of the question table."""
