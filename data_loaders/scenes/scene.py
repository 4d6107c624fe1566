"""The embedded world: one scene drawn under one law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes import (
    causality,
    day_and_night,
    light_propagation,
    light_source,
    reflection,
    refraction,
)
from physedit.data_loaders.scenes.draft import Draft
from physedit.data_loaders.scenes.draw import Dice, to_bytes
from physedit.data_loaders.scenes.questions import Question


@dataclass(frozen=True, slots=True)
class _Law:
    category: str
    operation: str
    draw: Callable[[Dice], Draft]


_TABLE: dict[str, _Law] = {
    "Light_Propagation": _Law("Optics", "remove", light_propagation.draw),
    "Reflection": _Law("Optics", "remove", reflection.draw),
    "Refraction": _Law("Optics", "add", refraction.draw),
    "Light_Source_Effects": _Law("Optics", "others", light_source.draw),
    "Causality": _Law("Mechanics", "remove", causality.draw),
    "Global": _Law("State", "time", day_and_night.draw),
}

LAWS: tuple[str, ...] = tuple(_TABLE)
"""PICABench's names of the laws that the world obeys."""


_WORDS = (
    "all and around as aside at ball be blue box broken casts cone dark day down evenly fall falls fill "
    "floor green ground hill holds house image in into is it its lamp light lights look looks lower "
    "mirror must night nothing on only part purple red remove rest room shadow shift shows sky so stand "
    "stick straight surface switch tank that the then there things too tree turn vanish wall water well "
    "with yellow "
)
VOCABULARY: tuple[str, ...] = tuple(_WORDS.split())
"""Every word of every prompt, in lower case. None tells left from right, so pictures may be mirrored."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One edit under one law. Pictures are uint8 ``[64, 64, 3]``, owned by the scene.

    ``physical`` is the target under the law, ``naive`` that of an editor that knows no physics. ``edit_areas`` are in
    pixels of the 64-pixel picture and empty for a law that changes all of it; question boxes are in the 1024-pixel
    frame. Categories, laws and operations are PICABench's strings.
    """

    scene_id: str
    category: str
    law: str
    operation: str
    source: NDArray[np.uint8]
    physical: NDArray[np.uint8]
    naive: NDArray[np.uint8]
    superficial_prompt: str
    intermediate_prompt: str
    explicit_prompt: str
    edit_areas: tuple[Box, ...]
    questions: tuple[Question, ...]


def draw_scene(law: str, seed: int) -> Scene:
    """The scene of a law and a seed. Pure: the same arguments give the same bytes on every machine.

    Raises:
        ValueError: the law is not one of ``LAWS``.
    """
    if law not in _TABLE:
        raise ValueError(f"law {law!r} is not drawn; the embedded world has {', '.join(LAWS)}")
    entry = _TABLE[law]
    draft = entry.draw(Dice(f"{law}/{seed}"))
    return Scene(
        scene_id=f"{law.lower()}-{seed:06d}",
        category=entry.category,
        law=law,
        operation=entry.operation,
        source=to_bytes(draft.source),
        physical=to_bytes(draft.physical),
        naive=to_bytes(draft.naive),
        superficial_prompt=draft.prompts.superficial,
        intermediate_prompt=draft.prompts.intermediate,
        explicit_prompt=draft.prompts.explicit,
        edit_areas=draft.edit_areas,
        questions=draft.questions,
    )
