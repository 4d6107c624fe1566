"""Micro batches of encoded pairs: read from an encoded store in place of the pictures.

Shape legend: N rows, L prompt levels, B batch.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from physedit.data_loaders.encoded_store import KEY_BYTES, EncodedStore, EntryDamaged, entry_key
from physedit.data_loaders.images import decode_rgb
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, DroppedRow, EditDataset, PromptLevel, StoredPair
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import Slot

LEVELS = tuple(PromptLevel)
"""The columns of ``RowKeys.texts``."""
KEY = f"S{KEY_BYTES}"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What decides the keys beside the data: see ``Backbone.encoding_key`` and ``Backbone.text_sees_pictures``."""

    encoding_key: str
    text_sees_pictures: bool

    def latents(self, pair: StoredPair) -> bytes:
        """Returns the key of a pair's encoded pictures: of their bytes, which are not decoded."""
        pictures = (pair.source, pair.target, *pair.references)
        return entry_key(self.encoding_key, "latents", *map(_digest, pictures))

    def text(self, pair: StoredPair) -> bytes:
        """Returns the key of a pair's encoded instruction, and of the pictures that it is seen with."""
        seen = (pair.source, *pair.references) if self.text_sees_pictures else ()
        return entry_key(self.encoding_key, "text", pair.instruction, *map(_digest, seen))


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The entries of all rows of a data set.

    Attributes:
        latents: ``[N]`` of ``KEY``; empty where a row has none.
        texts: ``[N, L]`` of ``KEY``, by ``LEVELS``; empty where a row is not shown at a level.
        dropped: rows that could not be encoded.
    """

    latents: NDArray[np.bytes_]
    texts: NDArray[np.bytes_]
    dropped: Mapping[int, DroppedRow]

    @staticmethod
    def none(num_rows: int) -> "RowKeys":
        """Returns the keys of rows of which none is encoded."""
        return RowKeys(np.zeros(num_rows, KEY), np.zeros((num_rows, len(LEVELS)), KEY), {})

    def latents_of(self, row: int) -> bytes:
        """Returns the key of the row's latents, padded to its length."""
        return _padded(self.latents[row])

    def text_of(self, row: int, level: PromptLevel) -> bytes:
        """Returns the key of the row's text at ``level``."""
        return _padded(self.texts[row, LEVELS.index(level)])


class TextSource(StrEnum):
    """Where the text states of encoded pairs come from."""

    CACHED = "cached"
    """The store."""
    LIVE = "live"
    """Encoded in the training step, from the instruction."""
    LIVE_WITH_PICTURES = "live with pictures"
    """Encoded in the training step, from the instruction and the decoded pictures that it is seen with."""


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Encoded pairs, B of each.

    Attributes:
        sample_ids: name the pairs, for error messages.
        latents: tensors by name of each pair, as they were stored.
        texts: likewise; empty if instructions are encoded live.
        instructions: one a pair, if they are encoded live.
        given: source and references of each pair, uint8 ``[3, H, W]``, if instructions are encoded live with them.
        weights: of each pair in the loss; see ``EditBatch.weights``.
        num_targets_of_other_size: how many targets are not of their source's size; stand-ins do not count.
    """

    sample_ids: tuple[str, ...]
    latents: tuple[Mapping[str, Tensor], ...]
    texts: tuple[Mapping[str, Tensor], ...]
    instructions: tuple[str, ...]
    given: tuple[tuple[Tensor, ...], ...]
    weights: tuple[float, ...]
    num_targets_of_other_size: int

    def __len__(self) -> int:
        return len(self.sample_ids)


@dataclass(frozen=True, slots=True)
class _EncodedPair:
    sample_id: str
    latents: Mapping[str, Tensor]
    text: Mapping[str, Tensor] | None
    instruction: str
    given: tuple[Tensor, ...]
    is_fitted: bool


class EncodedRows:
    """Reads micro batches of a run from a store; picklable, since worker processes hold copies."""

    def __init__(
        self, dataset: EditDataset, index: SizeIndex, store: EncodedStore, keys: RowKeys, text: TextSource
    ) -> None:
        """Reads nothing yet.

        Args:
            dataset: names the rows, and holds the instructions if they are encoded live.
            index: of the data set.
            store: has an entry for each of ``keys``.
            keys: of every row that the run shows.
            text: where text states come from.
        """
        self._dataset = dataset
        self._index = index
        self._store = store
        self._keys = keys
        self._text = text

    @property
    def dropped(self) -> Sequence[DroppedRow]:
        """The rows that could not be encoded."""
        return list(self._keys.dropped.values())

    def read(self, slots: Sequence[Slot]) -> tuple[EncodedBatch, tuple[DroppedRow, ...]]:
        """Returns what stands at the slots of a micro batch, and the rows of it that cannot be used.

        Raises:
            DatasetRowError: no entry at all can be read.
        """
        found = [None if slot.row is None else self._read(slot.row, slot.level) for slot in slots]
        pairs = [each for each in found if isinstance(each, _EncodedPair)]
        stand_in = pairs[0] if pairs else self._any_pair(slots[0].level)
        filled = [
            each if isinstance(each, _EncodedPair) else replace(stand_in, sample_id=called(each), is_fitted=False)
            for each in found
        ]
        batch = EncodedBatch(
            sample_ids=tuple(each.sample_id for each in filled),
            latents=tuple(each.latents for each in filled),
            texts=tuple(each.text for each in filled if each.text is not None),
            instructions=tuple(each.instruction for each in filled) if self._text is not TextSource.CACHED else (),
            given=tuple(each.given for each in filled) if self._text is TextSource.LIVE_WITH_PICTURES else (),
            weights=tuple(float(isinstance(each, _EncodedPair)) for each in found),
            num_targets_of_other_size=sum(each.is_fitted for each in filled),
        )
        return batch, tuple(each for each in found if isinstance(each, DroppedRow))

    def _read(self, row: int, level: PromptLevel) -> _EncodedPair | DroppedRow:
        if row in self._keys.dropped:
            return self._keys.dropped[row]
        name = self._dataset.name(row)
        try:
            latents = self._store.read(self._keys.latents_of(row))
            text = self._store.read(self._keys.text_of(row, level)) if self._text is TextSource.CACHED else None
            instruction, given = self._shown(row, level)
        except DatasetRowError as error:
            return DroppedRow(row, name, error.reason, str(error))
        except EntryDamaged as error:
            return DroppedRow(row, name, RowProblem.DAMAGED_ENTRY, str(error))
        is_fitted = self._index.source(row) != self._index.target(row)
        return _EncodedPair(name.sample_id, latents, text, instruction, given, is_fitted)

    def _shown(self, row: int, level: PromptLevel) -> tuple[str, tuple[Tensor, ...]]:
        """Returns what text is encoded from live."""
        if self._text is TextSource.CACHED:
            return "", ()
        pair = self._dataset.stored(row, level)
        pictures = (pair.source, *pair.references) if self._text is TextSource.LIVE_WITH_PICTURES else ()
        return pair.instruction, tuple(decode_rgb(picture, pair.origin) for picture in pictures)

    def _any_pair(self, level: PromptLevel) -> _EncodedPair:
        """Returns some pair that can be read, to stand in where a whole micro batch cannot."""
        if self._text is TextSource.CACHED:
            places = [(row, LEVELS[column]) for row, column in np.argwhere(self._keys.texts != b"").tolist()]
        else:
            places = [(row, level) for row in np.flatnonzero(self._keys.latents != b"").tolist()]
        for row, shown in places:
            pair = self._read(row, shown)
            if isinstance(pair, _EncodedPair):
                return pair
        raise DatasetRowError(
            "No entry of the encoded cache can be read. Run `physedit encode` with the same settings, or use "
            "encode=live.",
            reason=RowProblem.DAMAGED_ENTRY,
        )


def called(missing: DroppedRow | None) -> str:
    """Returns the name of a stand-in for ``missing``, or for an empty slot."""
    return "nothing" if missing is None else f"nothing for {missing.name.sample_id}"


def _digest(picture: bytes) -> str:
    return hashlib.sha256(picture).hexdigest()


def _padded(key: np.bytes_) -> bytes:
    """Returns a key in full: numpy cuts zero bytes off its end."""
    return bytes(key).ljust(KEY_BYTES, b"\0")
