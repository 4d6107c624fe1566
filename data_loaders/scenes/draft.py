"""What one law's module hands over: three pictures, three prompts, and what may change and be asked."""

from __future__ import annotations

from dataclasses import dataclass

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.draw import Picture
from physedit.data_loaders.scenes.questions import Question


@dataclass(frozen=True, slots=True)
class Prompts:
    """One instruction at the three levels of PICABench."""

    superficial: str
    intermediate: str
    explicit: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A scene before its pictures are rounded to bytes.

    ``edit_areas`` are in pixels of the picture and hold every pixel in which source and physical target differ; they
    are empty for a law that changes the whole picture.
    """

    source: Picture
    physical: Picture
    naive: Picture
    prompts: Prompts
    edit_areas: tuple[Box, ...]
    questions: tuple[Question, ...]
