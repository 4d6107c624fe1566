"""Which two frames of a still clip make an edit pair, and which pairs show the same as one before. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot

import numpy as np

from physedit.data_loaders.marks import THUMBNAIL_LEVELS, Mark, levels_apart, mark_of
from physedit.data_loaders.videos.cuts import (
    FLICKER_LEVELS,
    LEAST_STILL_SHARE,
    LEAST_TEXTURED_SHARE,
    Clip,
    has_drifted,
    is_cut,
)
from physedit.data_loaders.videos.looks import Difference, Look, difference, drift
from physedit.data_loaders.videos.reasons import Reason

_SHARP_SHARE = 0.5
"""A frame is sharp if it has at least this share of the sharpness of the clip's upper quartile. Ours: halving the
resolution of a photograph costs about three quarters of it."""

_LEAST_SHARPNESS = 0.01
"""Sharpness below which a frame is blurred whatever its clip. Ours: a Gaussian of 4 pixels of 320 leaves 0.003 of a
sharp texture's 0.9."""

_NUM_CANDIDATES = 16
"""Frames of a clip that are compared with each other: the sharpest of as many even parts. Ours: 120 comparisons."""

_LEAST_CHANGED_SHARE = 0.01
"""Least share of blocks that must have changed: 2 of 16 x 9."""

_GREATEST_CHANGED_SHARE = 0.4
"""Greatest share of blocks that may have changed: beyond it, it is another picture rather than an edit of one."""

_PATH_PX = 2.0
"""Way of the whole picture over all looks, in pixels of 320, from which on the camera of a generated video moves. Ours:
the errors of 60 steps add up to less than 1."""


@dataclass(frozen=True, slots=True)
class ChoiceSettings:
    """What a user can set about the choice."""

    min_gap_s: float = 0.5
    """Least time between source and target."""
    max_gap_s: float = 5.0
    """Greatest; PICA-100K's videos are 3 to 5 s long."""
    pairs_per_clip: int = 1
    """Pairs of one clip, which do not overlap in time."""
    duplicate_bits: int = 4
    """Hashes of 64 bits that differ in at most so many are of near-duplicates."""

    def __post_init__(self) -> None:
        if not 0 < self.min_gap_s <= self.max_gap_s:
            raise ChoiceError(
                f"min_gap_s={self.min_gap_s} and max_gap_s={self.max_gap_s}: the least gap must be above 0 and at "
                "most the greatest."
            )
        if self.pairs_per_clip < 1 or not 0 <= self.duplicate_bits < 64:
            raise ChoiceError(
                f"pairs_per_clip={self.pairs_per_clip} must be at least 1 and duplicate_bits={self.duplicate_bits} "
                "between 0 and 63."
            )


class ChoiceError(ValueError):
    """The settings of the choice contradict themselves."""


@dataclass(frozen=True, slots=True)
class ChosenPair:
    """Numbers and time stamps of two frames, and what the pictures are recognised by."""

    source_frame: int
    target_frame: int
    source_time_s: float
    target_time_s: float
    source_mark: Mark
    target_mark: Mark


def choose_pairs(clip: Clip, settings: ChoiceSettings) -> list[ChosenPair] | Reason:
    """Returns the pairs of a clip with most change before a still background, by time; or why there is none."""
    if difference(clip.looks[0].grey, clip.looks[0].grey).textured_share < LEAST_TEXTURED_SHARE:
        return Reason.TOO_PLAIN
    candidates = _sharpest(clip.looks)
    failed: Counter[Reason] = Counter()
    ranked: list[tuple[int, Look, Look]] = []
    for source, target in combinations(candidates, 2):
        if not settings.min_gap_s - 5e-4 <= target.time_s - source.time_s <= settings.max_gap_s + 5e-4:
            continue
        found = difference(source.grey, target.grey)
        reason = why_not_a_pair(found)
        if reason is None:
            ranked.append((found.num_changed, source, target))
        else:
            failed[reason] += 1
    if not ranked:
        return failed.most_common(1)[0][0] if failed else Reason.BLURRED
    return _best_apart(ranked, settings.pairs_per_clip) or Reason.BACKGROUND_MOVES


def why_not_a_pair(found: Difference) -> Reason | None:
    """Says why two frames of a still clip do not make a pair; None if they do, but for a movement of the whole."""
    if abs(found.level) >= FLICKER_LEVELS:
        return Reason.FLICKER
    if found.changed_share > _GREATEST_CHANGED_SHARE:
        return Reason.TOO_MUCH_CHANGE
    if found.still_share < LEAST_STILL_SHARE:
        return Reason.BACKGROUND_MOVES
    if found.changed_share < _LEAST_CHANGED_SHARE:
        return Reason.TOO_LITTLE_CHANGE
    return None


def first_and_last(looks: Iterator[Look]) -> ChosenPair | Reason:
    """Returns the first and the last look at a generated video, or why they make no pair; holds two looks at a time.

    Here light, weather and state may change the whole picture, so only a cut, a movement of the whole, blur and the
    want of any change are reasons against a pair.
    """
    source = target = next(looks, None)
    if source is None or target is None:
        return Reason.NO_FRAMES
    sharpness = [source.sharpness]
    down_px = right_px = 0.0
    for look in looks:
        if is_cut(difference(target.grey, look.grey)):
            return Reason.CUT_INSIDE
        moved = drift(target.grey, look.grey)
        down_px, right_px = down_px + moved.down_px, right_px + moved.right_px
        target = look
        sharpness.append(look.sharpness)
    if source.number == target.number:
        return Reason.TOO_SHORT
    if min(source.sharpness, target.sharpness) < _least_sharpness(sharpness):
        return Reason.BLURRED
    found = difference(source.grey, target.grey)
    # The steps together tell what first and last frame cannot, when too little is alike in them.
    if has_drifted(source.grey, target.grey) or hypot(down_px, right_px) >= _PATH_PX:
        return Reason.CAMERA_MOVES
    if found.changed_share < _LEAST_CHANGED_SHARE and abs(found.level) < FLICKER_LEVELS:
        return Reason.TOO_LITTLE_CHANGE
    return _pair(source, target)


class SeenPairs:
    """The pairs taken so far, to tell near-duplicates within and across clips."""

    def __init__(self, duplicate_bits: int) -> None:
        """Starts empty; see ``ChoiceSettings.duplicate_bits``."""
        self._bits = duplicate_bits
        self._hashes = np.empty((64, 2), np.uint64)  # source, target
        self._marks: list[tuple[Mark, Mark]] = []

    def take(self, pair: ChosenPair) -> bool:
        """Takes ``pair`` and returns True; or False if source and target both nearly repeat those of a pair before."""
        marks = pair.source_mark, pair.target_mark
        hashes = np.array([mark.hash for mark in marks], np.uint64)
        distances = np.bitwise_count(self._hashes[: len(self._marks)] ^ hashes)
        for index in np.flatnonzero((distances <= self._bits).all(axis=1)):
            if all(levels_apart(*both) <= THUMBNAIL_LEVELS for both in zip(self._marks[index], marks, strict=True)):
                return False
        if len(self._marks) == len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.empty_like(self._hashes)])
        self._hashes[len(self._marks)] = hashes
        self._marks.append(marks)
        return True


def _sharpest(looks: Sequence[Look]) -> list[Look]:
    """The sharpest look of each of ``_NUM_CANDIDATES`` even parts, without blurred ones; the earliest of equals."""
    least = _least_sharpness([look.sharpness for look in looks])
    parts = np.array_split(np.arange(len(looks)), min(_NUM_CANDIDATES, len(looks)))
    best = [max((looks[i] for i in part), key=lambda look: look.sharpness) for part in parts]
    return [look for look in best if look.sharpness >= least]


def _least_sharpness(sharpness: Sequence[float]) -> float:
    return max(_LEAST_SHARPNESS, _SHARP_SHARE * float(np.percentile(sharpness, 75)))


def _best_apart(ranked: list[tuple[int, Look, Look]], limit: int) -> list[ChosenPair]:
    """The pairs with most change and no drift that do not overlap; of equal ones the earliest, then the shortest."""
    ranked.sort(key=lambda entry: (-entry[0], entry[1].number, entry[2].number))
    taken: list[tuple[Look, Look]] = []
    for _, source, target in ranked:
        if len(taken) == limit:
            break
        is_apart = all(target.number < first.number or source.number > last.number for first, last in taken)
        # Asked last, of the few that matter: a slow drift that no step showed.
        if is_apart and not has_drifted(source.grey, target.grey):
            taken.append((source, target))
    taken.sort(key=lambda both: both[0].number)
    return [_pair(source, target) for source, target in taken]


def _pair(source: Look, target: Look) -> ChosenPair:
    return ChosenPair(
        source.number, target.number, source.time_s, target.time_s, mark_of(source.grey), mark_of(target.grey)
    )
