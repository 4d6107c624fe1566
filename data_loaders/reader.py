"""From rows of a table to edit pairs: what every pair data set does the same way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Generic, TypeVar

from physedit.data_loaders.images import decode_rgb, shown_size
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.rows import PairColumns, PictureFile, Rows, StoredPicture, digest, row_name
from physedit.data_loaders.sample import (
    DatasetRowError,
    EditSample,
    Origin,
    PromptLevel,
    RowHeader,
    RowName,
    StoredPair,
)
from physedit.data_loaders.selection import Selection, chosen_rows

_BYTE_ORDER_MARK = "\ufeff"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Part:
    """A picture column, and what a row without it is dropped for."""

    column: str
    problem_if_none: RowProblem


@dataclass(frozen=True, slots=True)
class _Tried(Generic[_T]):
    value: _T | None
    problem: str | None


class PairReader:
    """An ``EditDataset`` over rows; a data set option over a table is one with a constructor of its own.

    A row is usable or it is not, whichever prompt level is asked for: one that lacks any of its instructions is dropped
    at all levels. Opening looks at no row unless ``selection`` asks for it; what is wrong with a row is told by
    ``header``, ``stored`` and ``sample``.
    """

    def __init__(self, rows: Rows, columns: PairColumns, selection: Selection, *, min_side_px: int = 1) -> None:
        """Chooses the rows in use.

        Args:
            rows: the table; its constructor has checked that the columns exist.
            columns: which column holds what.
            selection: which rows are used.
            min_side_px: rows with a source or target below it on either side are refused as ``too few pixels``.

        Raises:
            ValueError: no row is left, or a law or operation that no row has.
        """
        if min_side_px < 1:
            raise ValueError(f"data.min_side_px is a number of pixels of at least 1, found {min_side_px}.")
        self._rows = rows
        self._columns = columns
        self._selection = selection
        self._min_side_px = min_side_px
        self._chosen = chosen_rows(rows, columns, selection)

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The levels that have an instruction column."""
        return frozenset(self._columns.instructions)

    @property
    def max_references(self) -> int:
        """The number of reference columns; a row may leave some empty."""
        return len(self._columns.references)

    @cached_property
    def fingerprint(self) -> str:
        """Names files, columns and settings; see ``EditDataset``."""
        settings = f"{self._columns!r} {self._selection!r} {self._min_side_px}"
        return digest([self._rows.fingerprint(), settings])

    def __len__(self) -> int:
        return len(self._chosen)

    def name(self, index: int) -> RowName:
        """Returns what the ``index``-th row in use is called.

        Raises:
            IndexError: ``index`` is not in 0..len-1.
        """
        number = self._number(index)
        return RowName(self._rows.name(number), self._rows.origin(number))

    def header(self, index: int) -> RowHeader:
        """Returns what the ``index``-th row in use tells without decoding.

        Raises:
            IndexError: ``index`` is not in 0..len-1.
        """
        number = self._number(index)
        try:
            row = self._rows.row(number)
        except DatasetRowError as error:
            return RowHeader(None, None, None, None, error.reason)
        origin = self._rows.origin(number)
        texts = [_tried(partial(_instruction, row, name, origin)) for name in self._instructions]
        sizes = [_tried(partial(self._size, row, part, number)) for part in self._parts(row)]
        problems = [text.problem for text in texts] + [size.problem for size in sizes]
        references = [size.value for size in sizes[2:] if size.value is not None]
        return RowHeader(
            source=sizes[0].value,
            target=sizes[1].value,
            law=_label(row, self._columns.law),
            operation=_label(row, self._columns.operation),
            problem=next((problem for problem in problems if problem is not None), None),
            references=tuple(references) if len(references) == len(sizes) - 2 else (),
        )

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        """Returns the ``index``-th row in use, undecoded, with the instruction of ``level``.

        Raises:
            DatasetRowError: the row is broken, or a picture or an instruction of any level is missing.
            IndexError: ``index`` is not in 0..len-1.
        """
        number = self._number(index)
        row, origin = self._rows.row(number), self._rows.origin(number)
        texts = {each: _instruction(row, name, origin) for each, name in self._columns.instructions.items()}
        source, target, *references = (self._picture(row, part, number).read() for part in self._parts(row))
        return StoredPair(
            sample_id=self._rows.name(number),
            source=source,
            target=target,
            references=tuple(references),
            instruction=texts[level],
            law=_label(row, self._columns.law),
            operation=_label(row, self._columns.operation),
            level=level,
            origin=origin,
        )

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns the ``index``-th row in use with the instruction of ``level``.

        Raises:
            DatasetRowError: as ``stored``, or a picture cannot be decoded or is too small.
            IndexError: ``index`` is not in 0..len-1.
        """
        pair = self.stored(index, level)
        try:
            sample = decode_pair(pair)
            for picture in (sample.source, sample.target):
                self._refuse_small((picture.shape[1], picture.shape[2]), sample.origin)
        except DatasetRowError as error:
            files = [
                each.path for each in self._rows.row(self._number(index)).values() if isinstance(each, PictureFile)
            ]
            if not files:
                raise
            raise DatasetRowError(f"{error} Its files: {', '.join(map(str, files))}.", reason=error.reason) from error
        return sample

    @property
    def _instructions(self) -> tuple[str, ...]:
        return tuple(self._columns.instructions.values())

    def _number(self, index: int) -> int:
        if not 0 <= index < len(self._chosen):
            raise IndexError(f"Row {index} was asked for, but the data set has {len(self._chosen)} rows.")
        return int(self._chosen[index])

    def _parts(self, row: Mapping[str, object]) -> tuple[_Part, ...]:
        columns = self._columns
        given = (name for name in columns.references if row[name] is not None)
        return (
            _Part(columns.source, RowProblem.NO_SOURCE),
            _Part(columns.target, RowProblem.NO_TARGET),
            *(_Part(name, RowProblem.NO_REFERENCE) for name in given),
        )

    def _picture(self, row: Mapping[str, object], part: _Part, number: int) -> StoredPicture:
        picture = row[part.column]
        if isinstance(picture, StoredPicture):
            return picture
        found = "" if picture is None else f" (found {picture!r})"
        origin, name = self._rows.origin(number), self._rows.name(number)
        where = f"{origin}" if name == row_name(origin) else f"{origin} ({name})"
        raise DatasetRowError(
            f"Column '{part.column}' in {where} holds no picture{found}. Fill it or drop the row.",
            reason=part.problem_if_none,
        )

    def _size(self, row: Mapping[str, object], part: _Part, number: int) -> tuple[int, int]:
        origin = self._rows.origin(number)
        with self._picture(row, part, number).open() as stream:
            size = shown_size(stream, origin)
        if part.problem_if_none is not RowProblem.NO_REFERENCE:
            self._refuse_small(size, origin)
        return size

    def _refuse_small(self, size: tuple[int, int], origin: Origin) -> None:
        if min(size) < self._min_side_px:
            raise DatasetRowError(
                f"A picture in {origin} is {size[1]}x{size[0]} pixels, below data.min_side_px={self._min_side_px}.",
                reason=RowProblem.TOO_SMALL,
            )


def decode_pair(pair: StoredPair) -> EditSample:
    """Returns an edit pair with its pictures decoded; pure.

    Raises:
        DatasetRowError: a picture cannot be decoded.
    """
    return EditSample(
        sample_id=pair.sample_id,
        source=decode_rgb(pair.source, pair.origin),
        target=decode_rgb(pair.target, pair.origin),
        instruction=pair.instruction,
        law=pair.law,
        operation=pair.operation,
        level=pair.level,
        origin=pair.origin,
        references=tuple(decode_rgb(data, pair.origin) for data in pair.references),
    )


def _tried(step: Callable[[], _T]) -> _Tried[_T]:
    try:
        return _Tried(step(), None)
    except DatasetRowError as error:
        return _Tried(None, error.reason)


def _instruction(row: Mapping[str, object], column: str, origin: Origin) -> str:
    text = row[column]
    if text is not None and not isinstance(text, str):
        problem = RowProblem.PROMPT_NO_TEXT
    elif text is None or not any(sign.isprintable() and not sign.isspace() for sign in text):
        problem = RowProblem.BLANK_PROMPT
    else:
        return text.strip().removeprefix(_BYTE_ORDER_MARK).strip()
    raise DatasetRowError(
        f"Column '{column}' in {origin} holds no instruction (found {text!r}). Fill it or drop the row.",
        reason=problem,
    )


def _label(row: Mapping[str, object], column: str | None) -> str | None:
    value = None if column is None else row[column]
    return None if value is None or value == "" else str(value)
