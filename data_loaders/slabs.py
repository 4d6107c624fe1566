"""Shared memory that is used again and again, through which workers hand pictures to the process they work for.

Fresh shared memory costs more than the copy into it, since the system clears and maps it page by page: 16 of 18 ms for
19 MB where it was measured. Slabs are mapped once. Whatever does not fit takes the usual way.
"""

import itertools
import math
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MAX_BYTES = 2**30
"""Ours: of all slabs of one process; batches in flight without slabs would hold about as much."""
_SHARED_FOLDER = "/dev/shm"
_MAX_SHARE_OF_FREE = 0.25


@dataclass(frozen=True, slots=True)
class Filled:
    """A slab that holds pictures, and their shapes in order."""

    worker: int
    slab: int
    shapes: tuple[tuple[int, ...], ...]


class Slabs:
    """``num_slabs`` slabs for each worker, who fills free ones. One is free again once nobody uses its pictures.

    Only a worker marks its slabs as used and only the process it works for marks them as free, so there is no lock.
    """

    def __init__(self, num_workers: int, num_slabs: int, num_bytes: int) -> None:
        """Allocates the slabs; called before the workers start, which get them with their data set."""
        self._memory = torch.empty((num_workers, num_slabs, num_bytes), dtype=torch.uint8)
        self._is_used = torch.zeros((num_workers, num_slabs), dtype=torch.uint8)
        for tensor in (self._memory, self._is_used):
            tensor.share_memory_()  # type: ignore[no-untyped-call]

    def fill(self, worker: int, pictures: Sequence[Tensor]) -> Filled | None:
        """Copies uint8 pictures into a free slab of ``worker``; None if none is free or they are too large."""
        free = np.flatnonzero(self._is_used[worker].numpy() == 0)
        num_bytes = sum(picture.numel() for picture in pictures)
        if len(free) == 0 or num_bytes > self._memory.shape[-1]:
            return None
        slab = int(free[0])
        self._is_used[worker, slab] = 1
        torch.cat([picture.reshape(-1) for picture in pictures], out=self._memory[worker, slab, :num_bytes])
        return Filled(worker, slab, tuple(tuple(picture.shape) for picture in pictures))

    def pictures(self, filled: Filled) -> list[Tensor]:
        """Returns the pictures in the slab itself, which is free again once the last of them is gone."""
        ends = list(itertools.accumulate(math.prod(shape) for shape in filled.shapes))
        pixels = self._memory[filled.worker, filled.slab, : ends[-1]].numpy()
        # The tensors' storage holds this very array, so it goes with the last of them.
        weakref.finalize(pixels, self._free, filled.worker, filled.slab)
        flat = torch.from_numpy(pixels)
        starts = [0, *ends[:-1]]
        return [flat[start:end].view(shape) for start, end, shape in zip(starts, ends, filled.shapes, strict=True)]

    def _free(self, worker: int, slab: int) -> None:
        self._is_used[worker, slab] = 0


def slabs_for(num_workers: int, num_slabs: int, num_bytes: int) -> Slabs | None:
    """Returns slabs of ``num_bytes``, or smaller ones within ``MAX_BYTES`` and a quarter of the free shared memory.

    None without workers, who would fill them, and where there is no shared memory to speak of.
    """
    if num_workers == 0:
        return None
    free = os.statvfs(_SHARED_FOLDER)
    limit = min(MAX_BYTES, int(free.f_bavail * free.f_frsize * _MAX_SHARE_OF_FREE))
    size = min(num_bytes, limit // (num_workers * num_slabs))
    return Slabs(num_workers, num_slabs, size) if size > 0 else None
