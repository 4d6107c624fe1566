"""Rows of parquet files read where they lie, by row groups: for files that are too far or too large to copy."""

import bisect
import itertools
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from physedit.data_loaders.rows import HeldPicture, StoredPicture, digest, row_name, stamp
from physedit.data_loaders.sample import DatasetLayoutError, Origin
from physedit.data_loaders.tables import is_refusal, require_columns

logger = logging.getLogger(__name__)

_GROUPS_HELD = 2


class RowGroupRows:
    """Random access to the rows of parquet files behind any ``fsspec`` address (``hf://``, ``s3://``, ``file://``).

    Nothing is written to disk. Any row can be asked for at any time, so order and resume are those of a local set, but
    a row costs its whole row group, of which the two last touched are held: fast in the order of the files, slow in a
    shuffled one. Picklable; a copy starts with nothing held.
    """

    def __init__(self, addresses: Sequence[str], *, texts: Sequence[str], pictures: Sequence[str]) -> None:
        """Reads the footers of all files, and no row.

        Raises:
            DatasetLayoutError: a file that is no parquet file, lacks a column, or no rows at all.
        """
        self._addresses = tuple(addresses)
        self._texts = tuple(texts)
        self._pictures = tuple(pictures)
        self._stamps: list[str] = []
        self._groups: list[tuple[int, int]] = []
        counts: list[int] = []
        num_bytes: list[int] = []
        for file, address in enumerate(self._addresses):
            footer = _footer(address)
            require_columns(address, dict.fromkeys(footer.schema.to_arrow_schema().names), self._columns)
            self._stamps.append(_stamp(address))
            for group in range(footer.num_row_groups):
                self._groups.append((file, group))
                counts.append(footer.row_group(group).num_rows)
                num_bytes.append(footer.row_group(group).total_byte_size)
        self._ends = list(itertools.accumulate(counts))
        if not self._ends or not self._ends[-1]:
            raise DatasetLayoutError(f"{', '.join(self._addresses)}: the data set has no rows.")
        self._held: OrderedDict[int, Any] = OrderedDict()
        logger.info(
            "Reading %d rows from %d file(s) where they lie: a row costs its row group, up to %.0f MiB.",
            self._ends[-1],
            len(self._addresses),
            max(num_bytes) / 2**20,
        )

    def __len__(self) -> int:
        return self._ends[-1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": OrderedDict()}

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``."""
        place = bisect.bisect_right(self._ends, index)
        cells = self._group(place).slice(index - self._start(place), 1).to_pylist()[0]
        return {name: _picture(cell) if name in self._pictures else cell for name, cell in cells.items()}

    def picture(self, index: int, column: str) -> object:
        """Returns the picture in one cell, if there is one."""
        return self.row(index)[column]

    def texts(self, column: str) -> Sequence[object]:
        """Returns one text column of all rows, read from every file."""
        return [cell for address in self._addresses for cell in _read_column(address, column)]

    def origin(self, index: int) -> Origin:
        """Returns the address of the file of row ``index``, and its number in that file."""
        place = bisect.bisect_right(self._ends, index)
        file, group = self._groups[place]
        return Origin(self._addresses[file], index - self._start(place - group))

    def name(self, index: int) -> str:
        """Returns the file's name and the row's number in it."""
        return row_name(self.origin(index))

    def fingerprint(self) -> str:
        """Names the files by name, size and time, or by what their store tells of them."""
        return digest(["row groups", *self._stamps])

    @property
    def _columns(self) -> tuple[str, ...]:
        return (*self._texts, *self._pictures)

    def _start(self, place: int) -> int:
        return self._ends[place - 1] if place else 0

    def _group(self, place: int) -> Any:
        from pyarrow import parquet

        if place not in self._held:
            file, group = self._groups[place]
            while len(self._held) >= _GROUPS_HELD:
                self._held.popitem(last=False)
            with _opened(self._addresses[file]) as stream:
                self._held[place] = parquet.ParquetFile(stream).read_row_group(group, columns=list(self._columns))
        self._held.move_to_end(place)
        return self._held[place]


def _picture(cell: object) -> StoredPicture | None:
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    return HeldPicture(data) if isinstance(data, bytes) and data else None


def _opened(address: str) -> Any:
    """Returns a context manager with an open file; fsspec reads only the ranges that are asked for."""
    import fsspec  # type: ignore[import-untyped]

    return fsspec.open(address, "rb")


def _stamp(address: str) -> str:
    """Names a file and its state: name, size and time here, what its store tells of it elsewhere."""
    import fsspec

    if "://" not in address:
        return stamp(Path(address))
    files, path = fsspec.core.url_to_fs(address)
    return f"{address}/{files.ukey(path)}"


def _footer(address: str) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        with _opened(address) as stream:
            return parquet.ParquetFile(stream).metadata
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        what = "cannot be read" if is_refusal(error) else "is no readable parquet file"
        raise DatasetLayoutError(f"{address} {what}: {reason}.") from error


def _read_column(address: str, column: str) -> list[object]:
    from pyarrow import parquet

    with _opened(address) as stream:
        values: list[object] = parquet.ParquetFile(stream).read(columns=[column]).column(column).to_pylist()
    return values
