"""The rows that an editor can take: those that it cannot are refused as rows that cannot be decoded are."""

import io
from collections.abc import Mapping, Sequence

from physedit.data_loaders.images import shown_size
from physedit.data_loaders.loader import CHANGED
from physedit.data_loaders.references import ReferenceSizes
from physedit.data_loaders.sample import (
    DatasetRowError,
    EditDataset,
    EditSample,
    Origin,
    PromptLevel,
    RowHeader,
    RowName,
    StoredPair,
)
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.text_limits import TextRule

_Size = tuple[int, int]


class AcceptedRows:
    """An ``EditDataset`` over another one; reading a row whose instruction the editor cannot take raises.

    A row is usable or it is not, whichever prompt level is asked for: one instruction that cannot be taken drops it at
    all levels.
    """

    def __init__(
        self, dataset: EditDataset, index: SizeIndex, references: ReferenceSizes, text_rule: TextRule | None
    ) -> None:
        """Reads nothing yet.

        Args:
            dataset: pure and picklable.
            index: of all rows.
            references: of all rows; a row whose references have other sizes has changed since and is refused.
            text_rule: the editor's; None if it takes every instruction.
        """
        self._dataset = dataset
        self._index = index
        self._references = references
        self._text_rule = text_rule

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """Those of the data set."""
        return self._dataset.levels

    @property
    def max_references(self) -> int:
        """That of the data set."""
        return self._dataset.max_references

    @property
    def fingerprint(self) -> str:
        """That of the data set."""
        return self._dataset.fingerprint

    def __len__(self) -> int:
        return len(self._dataset)

    def name(self, index: int) -> RowName:
        """Returns what row ``index`` is called."""
        return self._dataset.name(index)

    def header(self, index: int) -> RowHeader:
        """Returns what row ``index`` tells without decoding; nothing of its instructions."""
        return self._dataset.header(index)

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        """Returns row ``index`` undecoded.

        Raises:
            DatasetRowError: as the data set, or the editor cannot take the row.
        """
        pair = self._dataset.stored(index, level)
        found = [shown_size(io.BytesIO(picture), pair.origin) for picture in pair.references]
        self._check(index, pair.origin, found, {pair.level: pair.instruction})
        return pair

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns row ``index``.

        Raises:
            DatasetRowError: as the data set, or the editor cannot take the row.
        """
        sample = self._dataset.sample(index, level)
        found = [(picture.shape[1], picture.shape[2]) for picture in sample.references]
        self._check(index, sample.origin, found, {sample.level: sample.instruction})
        return sample

    def _check(self, index: int, origin: Origin, found: Sequence[_Size], texts: Mapping[PromptLevel, str]) -> None:
        references = [(height, width) for height, width in self._references[index].tolist() if height > 0]
        if list(found) != references:
            message = f"The references of {origin} are not of the sizes that were indexed. They were written later."
            raise DatasetRowError(message, reason=CHANGED)
        if self._text_rule is not None:
            sizes = (self._index.source(index), *references)
            refuse_texts(self._text_rule, origin, sizes, {**texts, **self._other_texts(index, texts)})

    def _other_texts(self, index: int, known: Mapping[PromptLevel, str]) -> Mapping[PromptLevel, str]:
        """Returns the instructions of the levels that are not ``known``."""
        pairs = [self._dataset.stored(index, level) for level in self._dataset.levels if level not in known]
        return {pair.level: pair.instruction for pair in pairs}


def refuse_texts(rule: TextRule, origin: Origin, sizes: Sequence[_Size], texts: Mapping[PromptLevel, str]) -> None:
    """Verifies that the editor takes every instruction of a row.

    Args:
        rule: the editor's.
        origin: of the row, for the message.
        sizes: of the pictures that the instructions are seen with.
        texts: the instructions.

    Raises:
        DatasetRowError: it does not; the first in the order of levels is named.
    """
    for level in PromptLevel:
        refusal = None if level not in texts else rule(sizes, texts[level])
        if refusal is not None:
            raise DatasetRowError(f"The {level} instruction of {origin} {refusal.message}", reason=refusal.reason)
