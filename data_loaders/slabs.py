"""Shared memory that is used again and again, through which workers hand pictures to the process they work for.

Fresh shared memory costs more than the copy into it, since the system clears and maps it page by page: 16 of 18 ms for
19 MB where it was measured. Slabs are mapped once, and pictures are decoded into them. Whatever does not fit takes the
usual way.
"""

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
    """A slab that holds pictures, where in it they start, and their shapes, in order."""

    worker: int
    slab: int
    starts: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


class Slabs:
    """``num_slabs`` slabs for each worker, who fills free ones. One is free again once nobody uses its pictures.

    Only a worker marks its slabs as used and only the process it works for marks them as free, so there is no lock.
    """

    def __init__(self, num_workers: int, num_slabs: int, num_bytes: int) -> None:
        """Allocates the slabs; called before the workers start, which get them with their data set."""
        self._memory = _shared((num_workers, num_slabs, num_bytes))
        self._is_used = _shared((num_workers, num_slabs))

    def opened(self, worker: int) -> "OpenSlab | None":
        """Returns a free slab of ``worker``, to be filled before the next is opened; None if none is free."""
        free = np.flatnonzero(self._is_used[worker].numpy() == 0)
        return (
            OpenSlab(self._memory[worker, free[0]], self._is_used[worker], worker, int(free[0])) if len(free) else None
        )

    def pictures(self, filled: Filled) -> list[Tensor]:
        """Returns the pictures in the slab itself, which is free again once the last of them is gone."""
        pixels = self._memory[filled.worker, filled.slab].numpy()
        # The tensors' storage holds this very array, so it goes with the last of them.
        weakref.finalize(pixels, self._free, filled.worker, filled.slab)
        flat = torch.from_numpy(pixels)
        places = zip(filled.starts, filled.shapes, strict=True)
        return [flat.as_strided(shape, _strides(shape), start) for start, shape in places]

    def _free(self, worker: int, slab: int) -> None:
        self._is_used[worker, slab] = 0


class OpenSlab:
    """A slab in the making. It counts as used from ``filled`` on, so one that is given up needs no word."""

    def __init__(self, memory: Tensor, is_used: Tensor, worker: int, slab: int) -> None:
        """Takes a slab's memory and the marks of its worker."""
        self._memory = memory
        self._is_used = is_used
        self._worker = worker
        self._slab = slab
        self._end = 0

    def place(self, height: int, width: int) -> Tensor:
        """Returns uninitialized memory for a picture: in the slab, or of its own once the slab has no room."""
        start, end = self._end, self._end + 3 * height * width
        if end > len(self._memory):
            return torch.empty((3, height, width), dtype=torch.uint8)
        self._end = end
        return self._memory[start:end].view(3, height, width)

    def filled(self, pictures: Sequence[Tensor]) -> Filled | None:
        """Returns the slab with ``pictures`` in it; those that are not in its memory are copied.

        None if they have no room: the slab stays free, and those in its memory must be copied before it is filled anew.
        """
        starts = []
        for picture in pictures:
            if not self._holds(picture):
                place = self._end
                self._end += picture.numel()
                if self._end > len(self._memory):
                    return None
                self._memory[place : self._end].view(picture.shape).copy_(picture)
                starts.append(place)
            else:
                starts.append(picture.data_ptr() - self._memory.data_ptr())
        self._is_used[self._slab] = 1
        return Filled(self._worker, self._slab, tuple(starts), tuple(tuple(picture.shape) for picture in pictures))

    def _holds(self, picture: Tensor) -> bool:
        start = picture.data_ptr() - self._memory.data_ptr()
        return 0 <= start < self._end and picture.is_contiguous()


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


def _shared(shape: tuple[int, ...]) -> Tensor:
    """Returns zeros in shared memory. ``share_memory_`` would write all of it, 60 ms for 150 MB before any is used."""
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape, _strides(shape))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
