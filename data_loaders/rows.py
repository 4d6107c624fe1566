"""Rows of a table and the pictures in them, whatever the files are: the seam between layouts and edit pairs."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from physedit.data_loaders.picture_files import open_picture, problem_of
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, Origin, PromptLevel


@runtime_checkable
class StoredPicture(Protocol):
    """An encoded picture that has not been read yet."""

    def read(self) -> bytes:
        """Returns all of it.

        Raises:
            DatasetRowError: it cannot be read.
        """
        ...

    def open(self) -> BinaryIO:
        """Returns a stream that can be sought, so that a header can be read without the rest.

        Raises:
            DatasetRowError: it cannot be read.
        """
        ...


class Rows(Protocol):
    """Random access to the rows of a table. Picklable, and pure while its files stay as they are."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns in use of row ``index``.

        A picture is a ``StoredPicture``, None where the cell is empty, or what the cell holds instead.

        Raises:
            DatasetRowError: the row itself is broken, such as a line that cannot be parsed.
        """
        ...

    def picture(self, index: int, column: str) -> object:
        """Returns the cell that ``row`` would hold of a picture column, without the rest of the row.

        Raises:
            DatasetRowError: the row itself is broken.
        """
        ...

    def texts(self, column: str) -> Sequence[object]:
        """Returns one text column of all rows; None where a row is broken."""
        ...

    def origin(self, index: int) -> Origin:
        """Returns where row ``index`` was read from."""
        ...

    def name(self, index: int) -> str:
        """Returns what row ``index`` is called: unique in the set, and the same in every run."""
        ...

    def fingerprint(self) -> str:
        """Names the files by their names, sizes and times, without reading them."""
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
    others: tuple[str, ...] = field(default=(), kw_only=True)
    """Further text columns that are opened with these, such as one that rows are grouped by."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The text columns."""
        labels = (name for name in (self.law, self.operation, *self.others) if name is not None)
        return tuple(dict.fromkeys([*self.instructions.values(), *labels]))

    @property
    def pictures(self) -> tuple[str, ...]:
        """The picture columns."""
        return (self.source, self.target, *self.references)


@dataclass(frozen=True, slots=True)
class HeldPicture:
    """A picture held in memory."""

    data: bytes

    def read(self) -> bytes:
        """Returns the bytes."""
        return self.data

    def open(self) -> BinaryIO:
        """Returns a stream over the bytes."""
        return io.BytesIO(self.data)


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture in a file of its own."""

    path: Path
    named_by: str
    """Column and row, for errors."""

    def read(self) -> bytes:
        """Returns the file's bytes.

        Raises:
            DatasetRowError: there is no such file, or it cannot be read.
        """
        with self.open() as stream:
            try:
                return stream.read()
            except OSError as error:
                raise self._refused(error) from error

    def open(self) -> BinaryIO:
        """Returns the open file.

        Raises:
            DatasetRowError: there is no such file, or it cannot be read.
        """
        try:
            return open_picture(self.path)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError | ValueError) -> DatasetRowError:
        problem = problem_of(error)
        reason = error.strerror if isinstance(error, OSError) else error
        remedy = " Names must be exact." if problem is RowProblem.MISSING_FILE else ""
        return DatasetRowError(
            f"{self.named_by} names the picture '{self.path.name}', but {self.path} is no file that can be read: "
            f"{reason}.{remedy}",
            reason=problem,
        )


def row_name(origin: Origin) -> str:
    """Returns the name of a row that has none of its own: file name and number."""
    return f"{origin.file.rpartition('/')[2]}:{origin.row}"


def stamp(path: Path) -> str:
    """Returns name, size and time of a file, or its name alone if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return path.name
    return f"{path.name}/{status.st_size}/{status.st_mtime_ns}"


def digest(parts: Sequence[str]) -> str:
    """Returns 32 hexadecimal digits that stand for ``parts`` in their order."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
