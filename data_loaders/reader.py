"""From rows of a table to edit pairs: what every pair data set does the same way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from physedit.data_loaders.images import decode_rgb
from physedit.data_loaders.sample import DatasetRowError, EditSample, Origin, PromptLevel


class Rows(Protocol):
    """Random access to rows; a picture is bytes, or a mapping that holds them as ``bytes``."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``."""
        ...

    def texts(self, column: str) -> Sequence[object]:
        """Returns one text column of all rows."""
        ...

    def origin(self, index: int) -> Origin:
        """Returns where row ``index`` was read from."""
        ...


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Which column holds what."""

    source: str
    target: str
    instructions: Mapping[PromptLevel, str]
    law: str | None
    operation: str | None
    references: tuple[str, ...] = ()


class PairReader:
    """An ``EditDataset`` over rows."""

    def __init__(self, rows: Rows, columns: PairColumns, *, limit: int | None) -> None:
        """Checks everything that can be checked without decoding a picture.

        Args:
            rows: the table; its constructor has checked that the columns exist.
            columns: which column holds what.
            limit: use this many rows, evenly spaced because files are often sorted by kind; None for all.

        Raises:
            DatasetRowError: an instruction is missing or blank.
            ValueError: no rows, or a limit that makes no sense.
        """
        self._rows = rows
        self._columns = columns
        self._length = _checked_length(len(rows), limit)
        for column in columns.instructions.values():
            _refuse_blank(rows, column)

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The levels that have an instruction column."""
        return frozenset(self._columns.instructions)

    @property
    def max_references(self) -> int:
        """The number of reference columns; a row may leave some empty."""
        return len(self._columns.references)

    def __len__(self) -> int:
        return self._length

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns the ``index``-th row in use with the instruction of ``level``.

        Raises:
            DatasetRowError: a picture is missing or cannot be decoded.
            IndexError: ``index`` is not in 0..len-1.
        """
        if not 0 <= index < self._length:
            raise IndexError(f"Row {index} was asked for, but the data set has {self._length} rows.")
        row_number = index * len(self._rows) // self._length
        row, origin = self._rows.row(row_number), self._rows.origin(row_number)
        return EditSample(
            sample_id=f"{origin.file.rpartition('/')[2]}:{origin.row}",
            source=_picture(row, self._columns.source, origin),
            target=_picture(row, self._columns.target, origin),
            instruction=str(row[self._columns.instructions[level]]).strip(),
            law=_label(row, self._columns.law),
            operation=_label(row, self._columns.operation),
            level=level,
            origin=origin,
            references=tuple(
                _picture(row, column, origin) for column in self._columns.references if row[column] is not None
            ),
        )


def _picture(row: Mapping[str, object], column: str, origin: Origin) -> Tensor:
    return decode_rgb(_stored_bytes(row, column, origin), origin)


def _stored_bytes(row: Mapping[str, object], column: str, origin: Origin) -> bytes:
    cell = row[column]
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    if not isinstance(data, bytes) or not data:
        raise DatasetRowError(f"Column '{column}' in {origin} holds no picture. Fill it or drop the row.")
    return data


def _label(row: Mapping[str, object], column: str | None) -> str | None:
    value = None if column is None else row[column]
    return None if value is None else str(value)


def _checked_length(num_rows: int, limit: int | None) -> int:
    if num_rows == 0:
        raise ValueError("The data set has no rows.")
    if limit is not None and limit < 1:
        raise ValueError(f"data.limit is a number of rows of at least 1, or null for all, found {limit}.")
    return num_rows if limit is None else min(limit, num_rows)


def _refuse_blank(rows: Rows, column: str) -> None:
    for index, text in enumerate(rows.texts(column)):
        if not isinstance(text, str) or not text.strip():
            raise DatasetRowError(
                f"Column '{column}' in {rows.origin(index)} holds no instruction (found {text!r}). "
                "Fill it or drop the row."
            )
