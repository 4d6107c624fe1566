"""Rows of tar shards in WebDataset's form: the members ``KEY.PART`` with an equal ``KEY`` are one row.

Shape legend: N rows, K columns.
"""

import bisect
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.picture_files import problem_of
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.rows import digest, stamp
from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, Origin
from physedit.data_loaders.tables import require_columns
from physedit.data_loaders.tar_index import ABSENT, ShardIndex, index_of

_JSON = "json"


@dataclass(frozen=True, slots=True)
class TarMember:
    """A picture in a tar shard, read by its offset."""

    shard: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """Returns the member's bytes.

        Raises:
            DatasetRowError: the shard cannot be read.
        """
        try:
            with self.shard.open("rb") as stream:
                stream.seek(self.offset)
                return stream.read(self.size)
        except OSError as error:
            raise DatasetRowError(f"{self.shard} cannot be read: {error}.", reason=problem_of(error)) from error

    def open(self) -> BinaryIO:
        """Returns a stream over the member's bytes."""
        return io.BytesIO(self.read())


class TarRows:
    """Random access to the samples of tar shards, in the order of the shards and of each key's first member.

    A column is a part's name without regard to capitals: ``source.png``, or ``source`` for whichever ending the part
    has. A text column may also be a field of the part ``json``. A sample that lacks a part is a row that lacks a cell.
    Of each shard the offsets are held, 16 bytes a column and row.
    """

    def __init__(self, shards: Sequence[Path], *, texts: Sequence[str], pictures: Sequence[str]) -> None:
        """Finds where the members lie; nothing else is read but the first ``json`` part.

        Raises:
            DatasetLayoutError: a damaged shard, no samples, a column that no sample has, or a key that two shards of
                one name have.
        """
        self._shards = tuple(shards)
        self._texts, self._pictures = tuple(texts), tuple(pictures)
        indexes = [index_of(shard) for shard in shards]
        self._keys = [key for index in indexes for key in index.keys]
        self._ends = list(itertools.accumulate(len(index.keys) for index in indexes))
        if not self._keys:
            raise DatasetLayoutError(f"{', '.join(map(str, shards))}: the data set has no rows.")
        self._columns = (*self._texts, *self._pictures, _JSON)
        self._places = np.concatenate([_places(index, self._columns) for index in indexes])  # [N, K, 2]
        self._fields = self._texts_in_json(dict.fromkeys(part for index in indexes for part in index.parts))

    def __len__(self) -> int:
        return len(self._keys)

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``; its texts are read, its pictures are not.

        Raises:
            DatasetRowError: a text is no UTF-8, or the ``json`` part no JSON object.
        """
        row: dict[str, object] = {name: self.picture(index, name) for name in self._pictures}
        for name in self._texts:
            member = None if name in self._fields else self._member(index, name)
            row[name] = None if member is None else self._decoded(member, index, name)
        if self._fields:
            fields = self._json(index)
            row.update({name: fields.get(name) for name in self._fields})
        return row

    def picture(self, index: int, column: str) -> object:
        """Returns the member that holds a picture, if the sample has it."""
        return self._member(index, column)

    def texts(self, column: str) -> Sequence[object]:
        """Returns one text column of all rows, each read from its shard."""
        return [self._text_or_none(index, column) for index in range(len(self))]

    def origin(self, index: int) -> Origin:
        """Returns the shard of row ``index`` and the number of its sample in it."""
        shard = self._shard(index)
        return Origin(str(self._shards[shard]), index - (self._ends[shard - 1] if shard else 0))

    def name(self, index: int) -> str:
        """Returns the shard's name and the sample's key."""
        return f"{self._shards[self._shard(index)].name}:{self._keys[index]}"

    def fingerprint(self) -> str:
        """Names the shards by name, size and time."""
        return digest(["tar", *map(stamp, self._shards)])

    def _shard(self, index: int) -> int:
        return bisect.bisect_right(self._ends, index)

    def _member(self, index: int, column: str) -> TarMember | None:
        offset, size = self._places[index, self._columns.index(column)].tolist()
        return None if offset < 0 else TarMember(self._shards[self._shard(index)], offset, size)

    def _decoded(self, member: TarMember, index: int, part: str) -> str:
        try:
            return member.read().decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise DatasetRowError(
                f"Part '{part}' of {self.origin(index)} ({self.name(index)}) is not UTF-8: {error}.",
                reason=RowProblem.NOT_UTF8,
            ) from error

    def _json(self, index: int) -> Mapping[str, object]:
        member = self._member(index, _JSON)
        if member is None:
            return {}
        try:
            fields = json.loads(self._decoded(member, index, _JSON))
        except (ValueError, RecursionError) as error:
            if isinstance(error, DatasetRowError):
                raise
            fields = None
        if not isinstance(fields, dict):
            raise DatasetRowError(
                f"Part 'json' of {self.origin(index)} ({self.name(index)}) is no JSON object.", reason=RowProblem.NO_ROW
            )
        return fields

    def _text_or_none(self, index: int, column: str) -> object:
        try:
            if column in self._fields:
                return self._json(index).get(column)
            member = self._member(index, column)
            return None if member is None else self._decoded(member, index, column)
        except DatasetRowError:
            return None

    def _texts_in_json(self, parts: Mapping[str, None]) -> frozenset[str]:
        """Returns the text columns that are fields of the part ``json``; refuses columns that are nowhere."""
        nowhere = [name for place, name in enumerate(self._columns[:-1]) if (self._places[:, place, 0] < 0).all()]
        first = int(np.argmax(self._places[:, -1, 0] >= 0))
        fields = self._json(first) if nowhere else {}
        lacking = [name for name in nowhere if name not in fields or name in self._pictures]
        if lacking:
            found = [name for name in (*parts, *fields) if name != _JSON and name not in lacking]
            require_columns(str(self._shards[0]), dict.fromkeys(found), lacking)
        return frozenset(nowhere)


def _places(index: ShardIndex, columns: Sequence[str]) -> NDArray[np.int64]:
    """Returns where each column lies, ``[N, K, 2]``: the part of its name, or one of that name with any ending."""
    places = np.full((len(index.keys), len(columns), 2), ABSENT, dtype=np.int64)
    for number, column in enumerate(map(str.lower, columns)):
        # The part of the exact name comes last, and so counts where a sample has several.
        for part in sorted(range(len(index.parts)), key=lambda place: index.parts[place] == column):
            if column in (index.parts[part], index.parts[part].rpartition(".")[0]):
                given = index.places[:, part, 0] >= 0
                places[given, number] = index.places[given, part]
    return places
