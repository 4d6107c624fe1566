"""From rows of a table to edit pairs: what every pair data set does the same way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from physedit.data_loaders.geometry import resize_cover_and_crop
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


class PairReader:
    """An ``EditDataset`` over rows."""

    def __init__(
        self, rows: Rows, columns: PairColumns, *, resolution: Sequence[int] | None, limit: int | None
    ) -> None:
        """Checks everything that can be checked without decoding a picture.

        Args:
            rows: the table; its constructor has checked that the columns exist.
            columns: which column holds what.
            resolution: height and width in pixels of every picture, or None to keep the stored sizes.
            limit: use this many rows, evenly spaced because files are often sorted by kind; None for all.

        Raises:
            DatasetRowError: an instruction is missing or blank.
            ValueError: no rows, or a resolution or limit that makes no sense.
        """
        self._rows = rows
        self._columns = columns
        self._resolution = _checked_resolution(resolution)
        self._length = _checked_length(len(rows), limit)
        for column in columns.instructions.values():
            _refuse_blank(rows, column)

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The levels that have an instruction column."""
        return frozenset(self._columns.instructions)

    def __len__(self) -> int:
        return self._length

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns the ``index``-th row in use with the instruction of ``level``.

        Raises:
            DatasetRowError: a picture is missing or cannot be decoded, or the two do not fit each other.
            IndexError: ``index`` is not in 0..len-1.
        """
        if not 0 <= index < self._length:
            raise IndexError(f"Row {index} was asked for, but the data set has {self._length} rows.")
        row_number = index * len(self._rows) // self._length
        row, origin = self._rows.row(row_number), self._rows.origin(row_number)
        source, target = self._pictures(row, origin)
        return EditSample(
            sample_id=f"{origin.file.rpartition('/')[2]}:{origin.row}",
            source=source,
            target=target,
            instruction=str(row[self._columns.instructions[level]]).strip(),
            law=_label(row, self._columns.law),
            operation=_label(row, self._columns.operation),
            level=level,
            origin=origin,
        )

    def _pictures(self, row: Mapping[str, object], origin: Origin) -> tuple[Tensor, Tensor]:
        source = decode_rgb(_stored_bytes(row, self._columns.source, origin), origin)
        target = decode_rgb(_stored_bytes(row, self._columns.target, origin), origin)
        height, width = self._resolution or target.shape[-2:]
        if self._resolution is None and source.shape != target.shape:
            raise DatasetRowError(
                f"The pictures in {origin} differ in size ({tuple(source.shape[-2:])} and "
                f"{tuple(target.shape[-2:])}, height and width). Set data.resolution to make them equal."
            )
        try:
            return resize_cover_and_crop(source, target, height_px=height, width_px=width)
        except ValueError as error:
            raise DatasetRowError(f"The pictures in {origin} are no pair: {error}") from error


def _stored_bytes(row: Mapping[str, object], column: str, origin: Origin) -> bytes:
    cell = row[column]
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    if not isinstance(data, bytes) or not data:
        raise DatasetRowError(f"Column '{column}' in {origin} holds no picture. Fill it or drop the row.")
    return data


def _label(row: Mapping[str, object], column: str | None) -> str | None:
    value = None if column is None else row[column]
    return None if value is None else str(value)


def _checked_resolution(resolution: Sequence[int] | None) -> tuple[int, int] | None:
    if resolution is None:
        return None
    if len(resolution) != 2 or min(resolution) < 1:
        raise ValueError(f"data.resolution is [height, width] in pixels or null, found {list(resolution)}.")
    return int(resolution[0]), int(resolution[1])


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
