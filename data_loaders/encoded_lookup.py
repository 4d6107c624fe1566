"""Rows on their way into an encoded store: which entries they lack, and their decoded pictures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from physedit.data_loaders.encoded import KeyRule
from physedit.data_loaders.encoded_store import EncodedStore
from physedit.data_loaders.loader import CHANGED
from physedit.data_loaders.reader import decode_pair
from physedit.data_loaders.sample import (
    DatasetRowError,
    DroppedRow,
    EditDataset,
    EditSample,
    PromptLevel,
    StoredPair,
)
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.workers import end_with_parent_alone

ShownRows = Sequence[tuple[int, tuple[PromptLevel, ...]]]
"""Rows, each with the levels it is shown at; see ``RunPlan.shown``."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A row's keys, and those of them that have no entry.

    Attributes:
        row: its number.
        latents: key of its pictures.
        texts: keys of its instruction, by level; empty if they were not looked for.
        lacking: keys without an entry that is whole.
        num_damaged: how many of those have a damaged one.
    """

    row: int
    latents: bytes
    texts: Mapping[PromptLevel, bytes]
    lacking: frozenset[bytes]
    num_damaged: int

    @property
    def lacks_text(self) -> bool:
        """True if the text of some level has no entry."""
        return any(key in self.lacking for key in self.texts.values())


@dataclass(frozen=True, slots=True)
class Decoded:
    """A row with its pictures decoded, and its instruction at each level that it is shown at."""

    row: LookedUp
    sample: EditSample
    instructions: Mapping[PromptLevel, str]


class LookUp(Dataset[LookedUp | DroppedRow]):
    """Looks up the entries of rows: their pictures' bytes are read and not decoded."""

    def __init__(
        self, dataset: EditDataset, shown: ShownRows, store: EncodedStore, rule: KeyRule, *, with_text: bool
    ) -> None:
        """Reads nothing yet.

        Args:
            dataset: pure and picklable.
            shown: the rows to look up.
            store: where their entries are looked for.
            rule: of the keys.
            with_text: look for instructions too, or for pictures alone.
        """
        self.dataset = dataset
        self._with_text = with_text
        self._rule = rule
        self._shown = shown
        self._store = store

    def __len__(self) -> int:
        return len(self._shown)

    def __getitem__(self, place: int) -> LookedUp | DroppedRow:
        row, levels = self._shown[place]
        try:
            return self.looked_up(row, self.stored(row, levels))
        except DatasetRowError as error:
            return DroppedRow(row, self.dataset.name(row), error.reason, str(error))

    def stored(self, row: int, levels: Sequence[PromptLevel]) -> Mapping[PromptLevel, StoredPair]:
        """Returns the row at each level that needs an entry of its own."""
        return {level: self.dataset.stored(row, level) for level in (levels if self._with_text else levels[:1])}

    def looked_up(self, row: int, pairs: Mapping[PromptLevel, StoredPair]) -> LookedUp:
        """Returns the keys of a row; entries are read to see whether they are as they were written."""
        latents = self._rule.latents(next(iter(pairs.values())))
        texts = {level: self._rule.text(pair) for level, pair in pairs.items()} if self._with_text else {}
        keys = {latents, *texts.values()}
        lacking = frozenset(key for key in keys if not self._store.is_intact(key))
        return LookedUp(row, latents, texts, lacking, sum(self._store.holds(key) for key in lacking))


class Decoder(Dataset[Decoded | DroppedRow]):
    """Decodes rows that lack an entry."""

    def __init__(self, look_up: LookUp, missing: ShownRows, index: SizeIndex) -> None:
        """Reads nothing yet.

        Args:
            look_up: whose data set and keys these are.
            missing: the rows to decode.
            index: of the data set; a row that is not of its sizes has changed since and is dropped.
        """
        self._dataset = look_up.dataset
        self._index = index
        self._missing = missing
        self._look_up = look_up

    def __len__(self) -> int:
        return len(self._missing)

    def __getitem__(self, place: int) -> Decoded | DroppedRow:
        row, levels = self._missing[place]
        try:
            pairs = self._look_up.stored(row, levels)
            sample = decode_pair(next(iter(pairs.values())))
        except DatasetRowError as error:
            return DroppedRow(row, self._dataset.name(row), error.reason, str(error))
        sizes = (tuple(sample.source.shape[1:]), tuple(sample.target.shape[1:]))
        if sizes != (self._index.source(row), self._index.target(row)):
            message = f"{sample.origin} is not the size that the size index says. It was written after the index."
            return DroppedRow(row, self._dataset.name(row), CHANGED, message)
        # The keys of the bytes that were decoded, should they have changed since they were looked up.
        instructions = {level: pair.instruction for level, pair in pairs.items()}
        return Decoded(self._look_up.looked_up(row, pairs), sample, instructions)


def loaded(items: Dataset[_T], num_workers: int) -> Iterator[_T]:
    """Returns the items in order, made by ``num_workers`` processes or, if 0, by this one."""
    loader = DataLoader(
        items,
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=end_with_parent_alone() if num_workers else None,
        generator=torch.Generator().manual_seed(0),
    )
    return iter(loader)
