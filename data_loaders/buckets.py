"""Which rows can share a micro batch: those whose sources the editor brings to the same sizes. Pure.

Shape legend: N rows, U stored sizes that differ.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import PictureSizeError

SizeRule = Callable[[int, int], Hashable]
"""From height and width of a stored source to what a micro batch must share; see ``Backbone.sizes_of``."""

NO_BUCKET = -1


@dataclass(frozen=True, slots=True)
class Buckets:
    """The bucket of every row.

    Attributes:
        numbers: int32 ``[N]``; ``NO_BUCKET`` for a row whose size the editor does not take.
        sizes: what the size rule gives for each bucket.
    """

    numbers: NDArray[np.int32]
    sizes: tuple[Hashable, ...]


def find_buckets(sources: NDArray[np.int32], sizes_of: SizeRule) -> Buckets:
    """Returns the buckets of stored sources; the rule is asked once for each size that occurs.

    A target is fitted to its source, so the source's size alone decides.

    Args:
        sources: height and width of each row's source, ``[N, 2]``; a side below 1 is a row without a source.
        sizes_of: the editor's size rule; it refuses a size with ``PictureSizeError``.
    """
    stored, places = np.unique(sources.astype(np.int64) @ np.array([1 << 31, 1]), return_inverse=True)  # [U], [N]
    numbers: dict[Hashable, int] = {}
    found = np.full(len(stored), NO_BUCKET, np.int32)
    for place, code in enumerate(stored.tolist()):
        height, width = divmod(code, 1 << 31)
        if min(height, width) < 1:
            continue
        try:
            sizes = sizes_of(height, width)
        except PictureSizeError:
            continue
        found[place] = numbers.setdefault(sizes, len(numbers))
    return Buckets(found[places], tuple(numbers))
