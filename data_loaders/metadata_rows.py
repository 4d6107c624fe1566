"""Rows of a folder of picture files with a metadata.csv or metadata.jsonl beside them."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, Origin
from physedit.data_loaders.tables import require_columns

METADATA_FILES = ("metadata.jsonl", "metadata.csv")


class MetadataRows:
    """Random access to the rows of a metadata file; a picture column holds file names relative to the folder."""

    def __init__(
        self, file: Path, *, columns: Sequence[str], pictures: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        """Reads the metadata and makes sure that every picture file is there under its exact name.

        Args:
            file: ``metadata.csv`` or ``metadata.jsonl``, UTF-8.
            columns: every column that rows must have, with the picture columns.
            pictures: those of ``columns`` that hold file names.
            optional: those of ``pictures`` whose cells may be empty.

        Raises:
            DatasetLayoutError: a column is missing, or a picture file; the message names row and file.
            DatasetRowError: a line is no UTF-8 or no JSON object.
        """
        self._file = file
        self._pictures = frozenset(pictures)
        self._optional = frozenset(optional)
        lines = _decoded_lines(file)
        self._rows = _csv_rows(lines) if file.suffix == ".csv" else _json_rows(file, lines)
        for index, row in enumerate(self._rows):
            self._check_row(index, row, columns)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``, pictures as bytes."""
        row = self._rows[index]
        return {name: self._read(name, cell, index) for name, cell in row.items()}

    def texts(self, column: str) -> Sequence[object]:
        """Returns one column of all rows."""
        return [row[column] for row in self._rows]

    def origin(self, index: int) -> Origin:
        """Returns the metadata file and the number of the row in it, from 0."""
        return Origin(str(self._file), index)

    def _check_row(self, index: int, row: Mapping[str, object], columns: Sequence[str]) -> None:
        require_columns(str(self.origin(index)), row, columns)
        for name in self._pictures:
            if name in self._optional and not row[name]:
                continue
            path = self._file.parent / str(row[name])
            if not path.is_file():
                raise DatasetLayoutError(
                    f"Column '{name}' in {self.origin(index)} names the picture '{row[name]}', but there is no file "
                    f"{path}. Names must be exact and relative to {self._file.parent}."
                )

    def _read(self, name: str, cell: object, index: int) -> object:
        if name not in self._pictures:
            return cell
        if name in self._optional and not cell:
            return None
        path = self._file.parent / str(cell)
        try:
            return path.read_bytes()
        except OSError as error:
            raise DatasetRowError(f"The picture {path} of {self.origin(index)} cannot be read: {error}.") from error


def _decoded_lines(file: Path) -> list[str]:
    lines = []
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), start=1):
        try:
            lines.append(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise DatasetRowError(f"Line {number} of {file} is not UTF-8: {error}. Save the file as UTF-8.") from error
    return lines


def _csv_rows(lines: Sequence[str]) -> list[dict[str, object]]:
    return [dict(row) for row in csv.DictReader(lines)]


def _json_rows(file: Path, lines: Sequence[str]) -> list[dict[str, object]]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DatasetRowError(f"Line {number} of {file} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise DatasetRowError(f"Line {number} of {file} is no JSON object.")
        rows.append(row)
    return rows
