"""Where a video is cut, and which stretches between cuts were taken with a camera that stands still. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from physedit.data_loaders.videos.looks import Difference, Grey, Look, difference, drift
from physedit.data_loaders.videos.reasons import Reason

CUT_LEVELS = 20.0
"""Mean step of the block levels, of 255 and without a common step, from which on two looks belong to different shots.
PySceneDetect's ContentDetector cuts at 27 of 255, with hue and saturation in the mean; luma alone moves less."""

FLICKER_LEVELS = 5.0
"""Sudden step of the whole picture's brightness, of 255, that is a flicker. Ours: sunlight through moving clouds
changes about 1 a look; the smallest flash that one sees in a still picture is about 2 %."""

LEAST_STILL_SHARE = 0.6
"""Least share of the blocks with texture that must be still. Ours: a subject may fill up to 40 % of the picture."""

DRIFT_PX = 0.5
"""Movement of the whole picture, in pixels of 320, from which on the camera moves. Ours: 1.6 pixels of a picture of
1024 are seen when one flips between the frames; still cameras stay below 0.1 in compressed video."""

LEAST_TEXTURED_SHARE = 0.1
"""Least share of blocks with texture: with less, a moving camera would not show."""


class Step(StrEnum):
    """What happened between two looks."""

    STILL = "still"
    CUT = "cut"
    FLICKER = "flicker"
    CAMERA = "camera"


@dataclass(frozen=True, slots=True)
class Clip:
    """Looks at a stretch of one shot, taken with a still camera under even light."""

    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A stretch of a video that is not used."""

    reason: Reason
    first_frame: int
    last_frame: int


def step_between(before: Look, after: Look) -> Step:
    """Says what happened between two looks that follow each other."""
    found = difference(before.grey, after.grey)
    if is_cut(found):
        return Step.CUT
    if has_drifted(before.grey, after.grey):
        return Step.CAMERA
    if abs(found.level) >= FLICKER_LEVELS:
        return Step.FLICKER
    return Step.STILL if found.still_share >= LEAST_STILL_SHARE else Step.CAMERA


def is_cut(found: Difference) -> bool:
    """True if two looks that follow each other differ so much that they belong to different shots."""
    return found.structure >= CUT_LEVELS


def has_drifted(before: Grey, after: Grey) -> bool:
    """True if the picture as a whole has moved, whatever its brightness."""
    return drift(before, after).amount_px >= DRIFT_PX


def split(looks: Iterable[Look], *, min_length_s: float, max_length_s: float) -> Iterator[Clip | Dropped]:
    """Splits a video into still clips and what lies between them, in order; memory holds one clip at a time.

    A clip ends at a cut, at a flicker, where the camera moves, and at ``max_length_s``. What is shorter than
    ``min_length_s`` is dropped, and neighbours that are dropped within one shot are dropped as one.
    """
    waste = _Waste()
    for run, end in _runs(looks, max_length_s):
        if run[-1].time_s - run[0].time_s >= min_length_s:
            yield from waste.taken()
            yield Clip(tuple(run))
        else:
            waste.add(run, end)
        if end is Step.CUT:
            yield from waste.taken()
    yield from waste.taken()


def _runs(looks: Iterable[Look], max_length_s: float) -> Iterator[tuple[list[Look], Step]]:
    """Yields looks that belong together and what ended them; STILL at the greatest length and at the video's end."""
    run: list[Look] = []
    for look in looks:
        step = step_between(run[-1], look) if run else Step.STILL
        if run and (step is not Step.STILL or look.time_s - run[0].time_s > max_length_s):
            yield run, step
            run = []
        run.append(look)
    if run:
        yield run, Step.STILL


class _Waste:
    """Short runs of one shot that lie side by side."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0
        self._ends: Counter[Step] = Counter()

    def add(self, run: list[Look], end: Step) -> None:
        self._first = run[0].number if self._first is None else self._first
        self._last = run[-1].number
        self._ends[end] += 1

    def taken(self) -> Iterator[Dropped]:
        if self._first is not None:
            yield Dropped(self._reason(), self._first, self._last)
        self._first, self._ends = None, Counter()

    def _reason(self) -> Reason:
        camera, flicker = self._ends[Step.CAMERA], self._ends[Step.FLICKER]
        if not camera and not flicker:
            return Reason.TOO_SHORT
        return Reason.CAMERA_MOVES if camera >= flicker else Reason.FLICKER
