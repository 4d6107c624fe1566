"""The size index: what every row tells before it is decoded, made once and kept on disk.

Shape legend: N rows.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import EditDataset, RowHeader
from physedit.data_loaders.workers import end_with_parent_alone

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of what is kept; raised when the same file and row would give another entry."""
NONE = -1
_CHUNK_ROWS = 256
_ROW = np.dtype([("source", np.int32, 2), ("target", np.int32, 2), ("law", np.int32), ("problem", np.int32)])
_ROWS_FILE, _WORDS_FILE = "rows.npy", "words.json"


@dataclass(frozen=True, slots=True)
class SizeIndex:
    """Sizes, laws and problems of all rows, 24 bytes a row.

    Attributes:
        rows: ``[N]`` with the fields ``source`` and ``target`` (height and width, 0 where a row has a problem), and
            ``law`` and ``problem`` (numbers of ``laws`` and ``problems``, or ``NONE``).
        laws: the laws that occur.
        problems: the reasons that occur why a row cannot be used.
    """

    rows: NDArray[np.void]
    laws: tuple[str, ...]
    problems: tuple[str, ...]

    @staticmethod
    def of(dataset: EditDataset, cache_folder: Path, *, num_workers: int) -> "SizeIndex":
        """Returns the index of ``dataset``, from ``cache_folder`` if it is there, else made and kept.

        Processes may call it at once: each writes on its own, and the first one's index stays. Rows whose files could
        not be read are looked at again, for access is nothing that the fingerprint tells.

        Args:
            dataset: its ``fingerprint`` names the index; no picture is decoded.
            cache_folder: of all indexes.
            num_workers: processes that read headers; 0 reads in this process.
        """
        name = f"{FORMAT}/{len(dataset)}/{dataset.fingerprint}"
        folder = cache_folder / hashlib.sha256(name.encode()).hexdigest()[:32]
        kept = _read(folder)
        if kept is not None and not _is_outdated(kept, dataset):
            return kept
        if kept is not None:
            shutil.rmtree(folder, ignore_errors=True)
        started = time.monotonic()
        made = _index(dataset, num_workers)
        _write(folder, made)
        logger.info(
            "Size index of %d rows made in %.1f s and kept in %s.", len(dataset), time.monotonic() - started, folder
        )
        return made

    def source(self, row: int) -> tuple[int, int]:
        """Returns height and width of the source of ``row``."""
        height, width = self.rows["source"][row].tolist()
        return height, width

    def target(self, row: int) -> tuple[int, int]:
        """Returns height and width of the target of ``row``."""
        height, width = self.rows["target"][row].tolist()
        return height, width


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows, and the laws and problems that their numbers stand for."""

    rows: NDArray[np.void]
    laws: tuple[str, ...]
    problems: tuple[str, ...]


class _Headers(Dataset[_Chunk]):
    """Chunks of headers as arrays: a worker sends few objects."""

    def __init__(self, dataset: EditDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return -(-len(self._dataset) // _CHUNK_ROWS)

    def __getitem__(self, chunk: int) -> _Chunk:
        first = chunk * _CHUNK_ROWS
        numbers = range(first, min(first + _CHUNK_ROWS, len(self._dataset)))
        return _packed([self._dataset.header(number) for number in numbers])


def _packed(headers: list[RowHeader]) -> _Chunk:
    laws: dict[str, int] = {}
    problems: dict[str, int] = {}
    rows = np.zeros(len(headers), _ROW)
    for row, header in zip(rows, headers, strict=True):
        row["source"], row["target"] = header.source or (0, 0), header.target or (0, 0)
        row["law"] = NONE if header.law is None else laws.setdefault(header.law, len(laws))
        row["problem"] = NONE if header.problem is None else problems.setdefault(header.problem, len(problems))
    return _Chunk(rows, tuple(laws), tuple(problems))


def _is_outdated(kept: SizeIndex, dataset: EditDataset) -> bool:
    """True if a row whose file could not be read can be by now, or has another problem."""
    if RowProblem.NOT_READABLE not in kept.problems:
        return False
    refused = np.flatnonzero(kept.rows["problem"] == kept.problems.index(RowProblem.NOT_READABLE))
    return any(dataset.header(int(row)).problem != RowProblem.NOT_READABLE for row in refused)


def _index(dataset: EditDataset, num_workers: int) -> SizeIndex:
    chunks = DataLoader(
        _Headers(dataset),
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=end_with_parent_alone() if num_workers else None,
        generator=torch.Generator().manual_seed(0),
    )
    laws: dict[str, int] = {}
    problems: dict[str, int] = {}
    rows = [_renumbered(chunk, laws, problems) for chunk in chunks]
    return SizeIndex(np.concatenate(rows), tuple(laws), tuple(problems))


def _renumbered(chunk: _Chunk, laws: dict[str, int], problems: dict[str, int]) -> NDArray[np.void]:
    """Returns the rows of a chunk with numbers that hold for all chunks."""
    for name, own, all_words in (("law", chunk.laws, laws), ("problem", chunk.problems, problems)):
        numbers = np.array([*(all_words.setdefault(word, len(all_words)) for word in own), NONE], np.int32)
        chunk.rows[name] = numbers[chunk.rows[name]]  # NONE is -1: the last
    return chunk.rows


def _read(folder: Path) -> SizeIndex | None:
    """Returns the index in ``folder``, memory-mapped; None if there is none that can be read."""
    try:
        rows = np.load(folder / _ROWS_FILE, mmap_mode="r")
        words = json.loads((folder / _WORDS_FILE).read_text(encoding="utf-8"))
        return SizeIndex(rows, tuple(words["laws"]), tuple(words["problems"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        logger.warning("The size index in %s cannot be read (%s), so it is made anew.", folder, error)
        return None


def _write(folder: Path, index: SizeIndex) -> None:
    """Writes ``folder`` as a whole or not at all."""
    partial = folder.parent / f".{folder.name}.{os.uname().nodename}.{os.getpid()}"
    partial.mkdir(parents=True, exist_ok=True)
    try:
        np.save(partial / _ROWS_FILE, index.rows)
        words = {"laws": index.laws, "problems": index.problems}
        (partial / _WORDS_FILE).write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
        if folder.exists() and _read(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            partial.rename(folder)
    except OSError:
        if not folder.exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
