"""Which rows of a table are used: laws, operations, the held-out split, and a limit, in this order."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import SEEK_END
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.rows import PairColumns, Rows, StoredPicture
from physedit.data_loaders.sample import DatasetRowError

Split: TypeAlias = Literal["all", "train", "heldout"]

# The end of an encoded picture hangs on all of it: PNG closes with checksums, others with their last pixels.
_TAIL_BYTES = 4096
_MAX_NAMES_SHOWN = 40


@dataclass(frozen=True, slots=True)
class FramesApart:
    """The columns of two frame numbers, and by how much these must differ."""

    source_frame: str
    target_frame: str
    at_least: int

    def __post_init__(self) -> None:
        if self.at_least < 1:
            raise ValueError(f"data.min_frames_apart is a number of frames of at least 0, found {self.at_least}.")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a config asks for.

    Attributes:
        laws: keep rows of these laws; None for all.
        operations: keep rows of these operations; None for all.
        split: ``train`` and ``heldout`` are two parts without a common row; ``all`` is both.
        heldout_share: the part of all rows that is held out, 0 to 1; rows held out at one share are so at any larger.
        group: column whose equal values stay on one side of the split; None: the source picture's bytes decide.
        limit: use this many of the rows that are left, evenly spaced because files are often sorted by kind.
        apart: keep pairs of frames that are far enough from each other; None for all.
    """

    laws: Sequence[str] | None = None
    operations: Sequence[str] | None = None
    split: Split = "all"
    heldout_share: float = 0.0
    group: str | None = None
    limit: int | None = None
    apart: FramesApart | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"data.limit is a number of rows of at least 1, or null for all, found {self.limit}.")
        if self.split not in ("all", "train", "heldout"):
            raise ValueError(f"data.split is '{self.split}'; it must be all, train or heldout.")
        if self.split == "all" and (self.heldout_share or self.group is not None):
            raise ValueError(
                f"data.heldout_share={self.heldout_share} and data.group={self.group} have no effect with "
                "data.split=all. Choose split=train or split=heldout, or leave them out."
            )
        if self.split != "all" and not 0 < self.heldout_share < 1:
            raise ValueError(
                f"data.split={self.split} needs data.heldout_share above 0 and below 1, found {self.heldout_share}."
            )


def chosen_rows(rows: Rows, columns: PairColumns, selection: Selection) -> Sequence[int] | NDArray[np.int64]:
    """Returns the numbers of the rows in use, ascending.

    Without filters and split it takes no time whatever the number of rows; filters read their text column, a split by
    the source picture reads the last 4 KiB of every row's source.

    Raises:
        ValueError: no row is left, or a law or operation that no row has.
    """
    if len(rows) == 0:
        raise ValueError("The data set has no rows.")
    masks = [
        _has_label(rows, column, wanted, kind)
        for column, wanted, kind in (
            (columns.law, selection.laws, "law"),
            (columns.operation, selection.operations, "operation"),
        )
        if wanted is not None
    ]
    if selection.apart is not None:
        masks.append(_is_apart(rows, selection.apart))
    kept: Sequence[int] | NDArray[np.int64] = range(len(rows))
    if masks:
        kept = np.flatnonzero(np.logical_and.reduce(masks))
    if selection.split != "all":
        is_side = _side(rows, columns, selection)
        kept = np.array([number for number in map(int, kept) if is_side(number)], dtype=np.int64)
    if len(kept) == 0:
        raise ValueError(f"No row is left of {len(rows)} with {_shown(selection)}. Widen the filters or the split.")
    if selection.limit is None or selection.limit >= len(kept):
        return kept
    numbers = [index * len(kept) // selection.limit for index in range(selection.limit)]
    return np.array([int(kept[number]) for number in numbers], dtype=np.int64)


def is_held_out(key: str, share: float) -> bool:
    """True if the row, or the group of rows, with this key is held out at ``share``: a pure function of both."""
    drawn = int.from_bytes(hashlib.sha256(f"heldout/{key}".encode("utf-8", "surrogateescape")).digest()[:8], "big")
    return drawn < share * 2.0**64


def _has_label(rows: Rows, column: str | None, wanted: Sequence[str], kind: str) -> NDArray[np.bool_]:
    if column is None:
        raise ValueError(f"data.{kind}s filters rows by {kind}, but no column of it is named. Set data.{kind}.")
    labels = rows.texts(column)
    found = Counter(str(label) for label in labels if label is not None)
    unknown = [name for name in wanted if name not in found]
    if unknown or not wanted:
        hints = [f" Did you mean '{near[0]}' for '{name}'?" for name in unknown if (near := _near(name, list(found)))]
        names = ", ".join(f"{name} ({count} rows)" for name, count in found.most_common(_MAX_NAMES_SHOWN))
        raise ValueError(
            f"data.{kind}s asks for {', '.join(unknown) or 'nothing'}, which no row has.{''.join(hints)} "
            f"Column '{column}' holds {names or 'no labels'}."
        )
    names_wanted = frozenset(wanted)
    return np.array([label is not None and str(label) in names_wanted for label in labels], dtype=bool)


def _is_apart(rows: Rows, apart: FramesApart) -> NDArray[np.bool_]:
    """True for rows whose two frame numbers are far enough from each other; a row without them is not."""
    pairs = zip(rows.texts(apart.source_frame), rows.texts(apart.target_frame), strict=True)
    return np.array([_distance(*pair) >= apart.at_least for pair in pairs], dtype=bool)


def _distance(first: object, second: object) -> int:
    try:
        return abs(int(str(first)) - int(str(second)))
    except ValueError:
        return -1


def _near(name: str, found: Sequence[str]) -> list[str]:
    by_plain = {each.lower().replace(" ", "_"): each for each in found}
    return [by_plain[plain] for plain in get_close_matches(name.lower().replace(" ", "_"), by_plain, n=1)]


def _side(rows: Rows, columns: PairColumns, selection: Selection) -> Callable[[int], bool]:
    wants_heldout = selection.split == "heldout"
    groups = None if selection.group is None else rows.texts(selection.group)

    def is_side(index: int) -> bool:
        group = None if groups is None else groups[index]
        key = _content_key(rows, columns.source, index) if group is None else f"group/{group}"
        return is_held_out(key, selection.heldout_share) == wants_heldout

    return is_side


def _content_key(rows: Rows, column: str, index: int) -> str:
    """Returns a key of the source's bytes; a row without one, which trains nothing, goes by its name."""
    try:
        picture = rows.picture(index, column)
        if not isinstance(picture, StoredPicture):
            return f"name/{rows.name(index)}"
        return f"content/{_mark(picture)}"
    except DatasetRowError:
        return f"name/{rows.name(index)}"


def _mark(picture: StoredPicture) -> str:
    with picture.open() as stream:
        size = stream.seek(0, SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        return f"{size}/{hashlib.sha256(stream.read()).hexdigest()}"


def _shown(selection: Selection) -> str:
    asked = {"laws": selection.laws, "operations": selection.operations}
    filters = [f"{name}={', '.join(names)}" for name, names in asked.items() if names is not None]
    if selection.split != "all":
        filters.append(f"split={selection.split} at heldout_share={selection.heldout_share}")
    if selection.apart is not None:
        filters.append(f"min_frames_apart={selection.apart.at_least}")
    return "; ".join(filters) or "no filter"
