"""Rows of a table in CSV or JSON lines whose picture columns hold file names."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.rows import PictureFile, digest, row_name, stamp
from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, Origin
from physedit.data_loaders.tables import require_columns

METADATA_FILES = ("metadata.jsonl", "metadata.csv")
TABLE_ENDINGS = (".jsonl", ".csv")

# A byte that is no UTF-8 is carried through the parser as one of these, so that its row alone is refused.
_ESCAPES = range(0xDC80, 0xDD00)
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class _Broken:
    """A line that gives no row."""

    message: str
    problem: RowProblem

    def error(self) -> DatasetRowError:
        return DatasetRowError(self.message, reason=self.problem)


_Line = tuple[int, dict[str, object] | _Broken]


class MetadataRows:
    """Random access to the rows of a table; file names are exact and relative to a folder, or absolute.

    The table is held in memory; picture files are not touched before their row is. A line that cannot be read is a row
    that says so, and leaves its neighbours as they are.
    """

    def __init__(
        self, file: Path, *, texts: Sequence[str], pictures: Sequence[str], folder: Path | None = None
    ) -> None:
        """Reads the table.

        Args:
            file: ``.csv`` or ``.jsonl``, UTF-8.
            texts: text columns.
            pictures: columns that hold file names.
            folder: where these start; None for the folder of ``file``.

        Raises:
            DatasetLayoutError: no rows, a column that no row has or that a CSV has twice, or a file in UTF-16.
            DatasetRowError: no line gives a row; the first one's error.
        """
        self._file = file
        self._folder = file.parent if folder is None else folder
        self._pictures = tuple(pictures)
        columns = (*texts, *pictures)
        data = file.read_bytes()
        if data.startswith(_UTF16_MARKS):
            raise DatasetLayoutError(f"{file} is UTF-16. Save it as UTF-8.")
        found: dict[str, None] = {}
        self._rows: list[tuple[object, ...] | _Broken] = []
        for number, row in _csv_rows(file, data, columns) if file.suffix == ".csv" else _json_rows(file, data):
            if isinstance(row, _Broken):
                self._rows.append(row)
                continue
            found.update(dict.fromkeys(row))
            cells = tuple(row.get(name) for name in columns)
            self._rows.append(_not_utf8(file, number, columns, cells) or cells)
        if self._rows and not found and isinstance(self._rows[0], _Broken):
            raise self._rows[0].error()
        if not self._rows:
            raise DatasetLayoutError(f"{file}: the data set has no rows.")
        require_columns(str(file), found, columns)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``.

        Raises:
            DatasetRowError: the line cannot be read.
        """
        row = dict(zip(self._columns, self._cells(index), strict=True))
        return row | {column: self.picture(index, column) for column in self._pictures}

    def picture(self, index: int, column: str) -> object:
        """Returns the file that one cell names; an empty cell names none.

        Raises:
            DatasetRowError: the line cannot be read.
        """
        name = self._cells(index)[self._columns.index(column)]
        if not isinstance(name, str):
            return name
        return PictureFile(self._folder / name, f"Column '{column}' in {self.origin(index)}") if name else None

    def texts(self, column: str) -> Sequence[object]:
        """Returns one column of all rows."""
        place = self._columns.index(column)
        return [None if isinstance(cells, _Broken) else cells[place] for cells in self._rows]

    def origin(self, index: int) -> Origin:
        """Returns the table and the number of the row in it, from 0."""
        return Origin(str(self._file), index)

    def name(self, index: int) -> str:
        """Returns the table's name and the number of the row."""
        return row_name(self.origin(index))

    def fingerprint(self) -> str:
        """Names the table and every picture file in it by name, size and time."""
        names = {name: None for column in self._pictures for name in self.texts(column) if isinstance(name, str)}
        return digest(["table", stamp(self._file), *_stamps(self._folder, list(names))])

    def _cells(self, index: int) -> tuple[object, ...]:
        cells = self._rows[index]
        if isinstance(cells, _Broken):
            raise cells.error()
        return cells


def _not_utf8(file: Path, number: int, columns: Sequence[str], cells: Sequence[object]) -> _Broken | None:
    for column, cell in zip(columns, cells, strict=True):
        if not isinstance(cell, str):
            continue
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            code = ord(cell[error.start])
            shown = f"byte 0x{code - 0xDC00:02x}" if code in _ESCAPES else f"half a sign, \\u{code:04x}"
            message = f"Line {number} of {file} is not UTF-8: {shown} in column '{column}'. Save the file as UTF-8."
            return _Broken(message, RowProblem.NOT_UTF8)
    return None


def _stamps(folder: Path, names: Sequence[str]) -> list[str]:
    """Returns name, size and time of each file, or its name alone; each folder is listed once."""
    parts = [os.path.split(name) for name in names]
    wanted: dict[str, set[str]] = {}
    for start, last in parts:
        wanted.setdefault(start, set()).add(last)
    found: dict[tuple[str, str], str] = {}
    for start, lasts in wanted.items():
        try:
            with os.scandir(folder / start) as entries:
                status = {entry.name: entry.stat() for entry in entries if entry.name in lasts}
        except (OSError, ValueError):
            continue
        found |= {(start, last): f"{each.st_size}/{each.st_mtime_ns}" for last, each in status.items()}
    return [f"{name}/{found.get(part, '')}" for name, part in zip(names, parts, strict=True)]


def _csv_rows(file: Path, data: bytes, columns: Sequence[str]) -> Iterator[_Line]:
    text = data.decode("utf-8-sig", "surrogateescape")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    with _named_csv_errors(file, reader):
        names = list(reader.fieldnames or ())
    twice = [name for name in columns if names.count(name) > 1]
    if twice:
        raise DatasetLayoutError(
            f"{file} has the column '{twice[0]}' {names.count(twice[0])} times, and nothing says which is meant. "
            "Rename or remove the others."
        )
    for row in _without_csv_errors(file, reader):
        if None in row:
            message = f"Line {reader.line_num} of {file} has more cells than the header. Quote cells that hold commas."
            yield reader.line_num, _Broken(message, RowProblem.NO_ROW)
        else:
            yield reader.line_num, {str(name): cell for name, cell in row.items()}


def _without_csv_errors(file: Path, reader: "csv.DictReader[str]") -> Iterable[dict[str | None, object]]:
    with _named_csv_errors(file, reader):
        yield from reader


@contextmanager
def _named_csv_errors(file: Path, reader: "csv.DictReader[str]") -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        # The reader counts the lines of whole rows, and this is the row behind them.
        raise DatasetLayoutError(
            f"The row from line {reader.line_num + 1} of {file} on cannot be read as CSV: {error}. Look for a quote "
            "that is not closed, or a cell that is longer."
        ) from error


def _json_rows(file: Path, data: bytes) -> Iterator[_Line]:
    # Lines of bytes: text would also be split at signs such as U+2028, which JSON allows in a string.
    for number, line in enumerate(data.splitlines(), start=1):
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield number, _Broken(f"Line {number} of {file} is not JSON: {error}.", RowProblem.NO_ROW)
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            yield number, _Broken(f"Line {number} of {file} is no JSON object.", RowProblem.NO_ROW)
