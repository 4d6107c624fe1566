"""The sizes of further pictures that rows are edited from: read once from headers, and what batches make of them.

Shape legend: N rows, R references a row has at most.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from physedit.data_loaders.buckets import NO_BUCKET, Buckets, SizeRule
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import EditDataset, PictureSizeError
from physedit.data_loaders.workers import end_with_parent_alone

logger = logging.getLogger(__name__)

_FORMAT = 2
"""Version of what is kept; raised when the same file and row would give another entry."""
_CHUNK_ROWS = 256
_REFUSED = -1
"""The size in rows with a file that could not be read, until it is known that they are kept nowhere."""

ReferenceSizes = NDArray[np.int32]
"""``[N, R, 2]``: height and width of each reference; 0 where a row has none, or has a problem."""


def reference_sizes(dataset: EditDataset, cache_folder: Path, *, num_workers: int) -> ReferenceSizes:
    """Returns the sizes of all references, from ``cache_folder`` if they are there, else read and kept.

    They are not kept while there is a row with a file that is refused, which may be readable the next time.

    Rows without references cost nothing: R is 0 then, and no header is read. Processes may call it at once.

    Args:
        dataset: its ``fingerprint`` names the file; no picture is decoded.
        cache_folder: of all such files.
        num_workers: processes that read headers; 0 reads in this process.
    """
    num_rows, most = len(dataset), dataset.max_references
    if most == 0:
        return np.zeros((num_rows, 0, 2), np.int32)
    name = hashlib.sha256(f"{_FORMAT}/{num_rows}/{most}/{dataset.fingerprint}".encode()).hexdigest()[:32]
    file = cache_folder / f"references_{name}.npy"
    kept = _read(file, (num_rows, most, 2))
    if kept is not None:
        return kept
    made = np.concatenate(list(_chunks(dataset, num_workers)))
    if made.min(initial=0) == _REFUSED:
        return made.clip(min=0)
    _write(file, made)
    return made


def with_references(buckets: Buckets, references: ReferenceSizes, sizes_of: SizeRule) -> Buckets:
    """Returns the buckets of rows whose references, too, are edited at equal sizes and are equally many. Pure.

    Args:
        buckets: by source.
        references: of the same rows.
        sizes_of: the editor's size rule; a row with a reference that it refuses has no bucket.
    """
    if references.shape[1] == 0:
        return buckets
    stored, places = np.unique(references.reshape(-1, 2), axis=0, return_inverse=True)
    known: dict[object, int] = {}
    codes = np.array([_code(height, width, sizes_of, known) for height, width in stored.tolist()], np.int64)
    of_rows = codes[places.reshape(references.shape[:2])]  # [N, R]
    keys, numbers = np.unique(np.column_stack([buckets.numbers, of_rows]), axis=0, return_inverse=True)
    is_unfit = (buckets.numbers == NO_BUCKET) | (of_rows == _UNFIT).any(axis=1)
    found = np.where(is_unfit, NO_BUCKET, numbers.reshape(-1)).astype(np.int32)
    return Buckets(found, tuple(map(tuple, keys.tolist())))


_NO_PICTURE, _UNFIT = -1, -2


def _code(height: int, width: int, sizes_of: SizeRule, known: dict[object, int]) -> int:
    """Returns a number that stored sizes which are edited alike share."""
    if min(height, width) < 1:
        return _NO_PICTURE
    try:
        return known.setdefault(sizes_of(height, width), len(known))
    except PictureSizeError:
        return _UNFIT


class _Headers(Dataset[ReferenceSizes]):
    """Chunks of rows as arrays: a worker sends few objects."""

    def __init__(self, dataset: EditDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return -(-len(self._dataset) // _CHUNK_ROWS)

    def __getitem__(self, chunk: int) -> ReferenceSizes:
        first = chunk * _CHUNK_ROWS
        numbers = range(first, min(first + _CHUNK_ROWS, len(self._dataset)))
        found = np.zeros((len(numbers), self._dataset.max_references, 2), np.int32)
        for row, number in zip(found, numbers, strict=True):
            header = self._dataset.header(number)
            row[: len(header.references)] = np.array(header.references, np.int32).reshape(-1, 2)
            if header.problem == RowProblem.NOT_READABLE:
                row[:] = _REFUSED
        return found


def _chunks(dataset: EditDataset, num_workers: int) -> Iterator[ReferenceSizes]:
    return iter(
        DataLoader(
            _Headers(dataset),
            batch_size=None,
            num_workers=num_workers,
            worker_init_fn=end_with_parent_alone() if num_workers else None,
            generator=torch.Generator().manual_seed(0),
        )
    )


def _read(file: Path, shape: tuple[int, ...]) -> ReferenceSizes | None:
    try:
        kept: ReferenceSizes = np.load(file, mmap_mode="r")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("The sizes of references in %s cannot be read (%s), so they are read anew.", file, error)
        return None
    return kept if kept.shape == shape else None


def _write(file: Path, sizes: ReferenceSizes) -> None:
    """Writes the file as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.parent / f".{file.stem}.{os.uname().nodename}.{os.getpid()}.npy"
    try:
        np.save(partial, sizes)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
