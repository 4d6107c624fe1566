"""Which rows can share a micro batch: those whose sources the editor brings to the same sizes. Pure.

Shape legend: N rows, U stored sizes that differ.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.order import portions
from physedit.data_loaders.sample import PictureSizeError

SizeRule = Callable[[int, int], Hashable]
"""From height and width of a stored source to what a micro batch must share; see ``Backbone.sizes_of``."""

NO_BUCKET = -1


@dataclass(frozen=True, slots=True)
class Buckets:
    """The bucket of every row.

    Attributes:
        numbers: ``[N]``, int16 unless more sizes differ than it can count; ``NO_BUCKET`` for a row whose size the
            editor does not take.
        sizes: what the size rule gives for each bucket.
    """

    numbers: NDArray[np.signedinteger]
    sizes: tuple[Hashable, ...]


def find_buckets(sources: NDArray[np.int32], sizes_of: SizeRule) -> Buckets:
    """Returns the buckets of stored sources; the rule is asked once for each size that occurs.

    A target is fitted to its source, so the source's size alone decides.

    Args:
        sources: height and width of each row's source, ``[N, 2]``; a side below 1 is a row without a source.
        sizes_of: the editor's size rule; it refuses a size with ``PictureSizeError``.
    """
    stored, places = _distinct(sources)
    numbers: dict[Hashable, int] = {}
    found = np.full(len(stored), NO_BUCKET, np.int32)
    for place, code in enumerate(stored.tolist()):  # in the order of sizes, which does not depend on that of rows
        height, width = divmod(code, 1 << 31)
        if min(height, width) < 1:
            continue
        try:
            sizes = sizes_of(height, width)
        except PictureSizeError:
            continue
        found[place] = numbers.setdefault(sizes, len(numbers))
    for portion in portions(len(places)):
        places[portion] = found[places[portion]]
    return Buckets(places, tuple(numbers))


def _distinct(sources: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.signedinteger]]:
    """Returns the codes that occur in ascending order, ``[U]``, and which of them each row has, ``[N]``."""
    stored = np.empty(0, np.int64)
    for portion in portions(len(sources)):
        stored = _unique(np.concatenate([stored, _unique(_codes(sources[portion]))]))
    kind = np.int16 if len(stored) <= np.iinfo(np.int16).max else np.int32
    places: NDArray[np.signedinteger] = np.empty(len(sources), kind)
    for portion in portions(len(sources)):
        places[portion] = np.searchsorted(stored, _codes(sources[portion]))
    return stored, places


def _codes(sources: NDArray[np.int32]) -> NDArray[np.int64]:
    """Returns each size as ``height * 2**31 + width``."""
    sides = sources.astype(np.int64)
    return (sides[:, 0] << 31) + sides[:, 1]


def _unique(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns ``np.unique(codes)``, without the table that a first call sets up in 8 ms of CPU time."""
    ordered = np.sort(codes)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]
