"""Record batches of Arrow stream files, each found by its place in its file.

A stream has no table of contents: opening one reads the head of every batch, all over the file. The places are listed
once and kept, so that opening costs the same whatever the number of rows, and a row costs its own batch's head.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST, _FILE, _START, _LENGTH = range(4)
_FIELDS = ("first", "file", "start", "length")
_FILES_KEY, _COUNTS_KEY = b"files", b"counts"


@dataclass(frozen=True, slots=True)
class _StreamFile:
    """An Arrow file as it was when its batches were listed; ``size`` and ``time_ns`` tell whether it still is."""

    path: str
    size: int
    time_ns: int
    num_rows: int

    @property
    def is_unchanged(self) -> bool:
        try:
            status = Path(self.path).stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.size, self.time_ns)


class ArrowBatches:
    """Random access to the cells of Arrow stream files, memory-mapped. Picklable: a copy maps the same files."""

    def __init__(self, files: Sequence[_StreamFile], places: NDArray[np.int64]) -> None:
        """Takes listed batches; use ``listed`` or ``kept``.

        Args:
            files: in the order of rows.
            places: of each batch its first row, its file's number, and where in the file it starts and how long it
                is, in bytes; int64 ``[batches, 4]``.
        """
        self._files = tuple(files)
        self._places = places
        self._mapped: dict[int, tuple[Any, Any]] = {}

    @staticmethod
    def listed(paths: Sequence[Path]) -> "ArrowBatches":
        """Returns the batches of ``paths``, in their order; the head of each batch is read."""
        import pyarrow

        files: list[_StreamFile] = []
        places: list[tuple[int, int, int, int]] = []
        first = 0
        for number, path in enumerate(paths):
            before = first
            with pyarrow.memory_map(str(path)) as source:
                reader = pyarrow.ipc.MessageReader.open_stream(source)
                schema = pyarrow.ipc.read_schema(reader.read_next_message())
                start = source.tell()
                for message in reader:
                    num_rows = pyarrow.ipc.read_record_batch(message, schema).num_rows
                    if num_rows:
                        places.append((first, number, start, source.tell() - start))
                    first, start = first + num_rows, source.tell()
            status = path.stat()
            files.append(_StreamFile(str(path), status.st_size, status.st_mtime_ns, first - before))
        return ArrowBatches(files, np.array(places, np.int64).reshape(-1, len(_FIELDS)))

    @staticmethod
    def kept(path: Path) -> "tuple[Sequence[int], ArrowBatches] | None":
        """Returns what ``keep`` wrote to ``path``; None if nothing is there, or a file of the batches has changed."""
        import pyarrow

        try:
            table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
            files = [_StreamFile(*each) for each in json.loads(table.schema.metadata[_FILES_KEY])]
            counts: list[int] = json.loads(table.schema.metadata[_COUNTS_KEY])
        except (OSError, pyarrow.ArrowInvalid, ValueError, KeyError, TypeError):
            return None
        if not all(file.is_unchanged for file in files):
            return None
        return counts, ArrowBatches(files, np.stack([table.column(name).to_numpy() for name in _FIELDS], axis=1))

    def keep(self, path: Path, counts: Sequence[int]) -> None:
        """Writes the places to ``path``, as a whole or not at all.

        Args:
            path: is replaced.
            counts: rows of each file that the batches were made of.
        """
        import pyarrow

        files = [[file.path, file.size, file.time_ns, file.num_rows] for file in self._files]
        known = {_FILES_KEY: json.dumps(files), _COUNTS_KEY: json.dumps(list(counts))}
        schema = pyarrow.schema([(name, pyarrow.int64()) for name in _FIELDS], known)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
        try:
            with pyarrow.OSFile(str(partial), "wb") as sink, pyarrow.ipc.new_file(sink, schema) as writer:
                writer.write_table(pyarrow.table(list(self._places.T), schema=schema))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def counts(self) -> list[int]:
        """Rows of each file."""
        return [file.num_rows for file in self._files]

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [Path(file.path) for file in self._files]

    def __len__(self) -> int:
        return sum(self.counts)

    def cells(self, index: int, columns: Sequence[str]) -> list[Any]:
        """Returns the ``pyarrow`` scalars of row ``index``; nothing of them is copied."""
        number = int(np.searchsorted(self._places[:, _FIRST], index, side="right")) - 1
        batch = self._batch(number)
        place = index - int(self._places[number, _FIRST])
        return [batch.column(name)[place] for name in columns]

    def values(self, column: str) -> list[object]:
        """Returns a column of all rows as Python values."""
        return [
            value for number in range(len(self._places)) for value in self._batch(number).column(column).to_pylist()
        ]

    def _batch(self, number: int) -> Any:
        import pyarrow

        _, file, start, length = self._places[number].tolist()
        if file not in self._mapped:
            source = pyarrow.memory_map(self._files[file].path)
            self._mapped[file] = pyarrow.ipc.read_schema(source), _whole(source)
        schema, buffer = self._mapped[file]
        return pyarrow.ipc.read_record_batch(pyarrow.ipc.read_message(buffer.slice(start, length)), schema)

    def __getstate__(self) -> dict[str, object]:
        return {"_files": self._files, "_places": self._places, "_mapped": {}}


def _whole(source: Any) -> Any:
    """Returns all of a memory-mapped file as one buffer; nothing is read."""
    source.seek(0)
    return source.read_buffer()
