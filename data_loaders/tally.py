"""Counting what an audit finds of many rows, in a few bytes a row.

Shape legend: N rows looked at.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from physedit.data_loaders.audit import Note, NoteKind, RowReport
from physedit.data_loaders.text_limits import TextLimit

UNLABELLED = "none"
"""Stands for a law or operation that a row does not tell."""
_DROPPED = -1


@dataclass(slots=True)
class TextCount:
    """What was counted of one encoder: instructions, the longest one's tokens, and how many are beyond the limit.

    A row has an instruction at each of its levels.
    """

    limit: TextLimit
    num_instructions: int = 0
    longest: int = 0
    num_over: int = 0


@dataclass(slots=True)
class Tally:
    """The counts so far; laws, operations, levels, sizes and buckets are those of rows that can be used."""

    num_checked: int = 0
    num_stopping: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    buckets: Counter[Hashable] = field(default_factory=Counter)
    notes: Counter[NoteKind] = field(default_factory=Counter)

    @property
    def num_dropped(self) -> int:
        """Rows that training would drop."""
        return sum(self.dropped.values())

    @property
    def num_kept(self) -> int:
        """Rows that training would learn from."""
        return self.num_checked - self.num_dropped - self.num_stopping


class Counting:
    """Counts reports as they come."""

    def __init__(self, num_rows: int, limits: Sequence[TextLimit]) -> None:
        """Begins with none.

        Args:
            num_rows: N, how many will come at most.
            limits: those of the ``Audit``.
        """
        self.tally = Tally()
        self.texts = tuple(TextCount(limit) for limit in limits)
        self._counting = [text for text in self.texts if text.limit.count is not None]
        self._keys: set[int] = set()
        self._law_numbers: dict[str, int] = {}
        self._rows = np.zeros(num_rows, np.int64)
        self._laws = np.full(num_rows, _DROPPED, np.int32)

    def add(self, report: RowReport) -> tuple[Note, ...]:
        """Counts a row; returns its notes and, if a row before it is the same, one that says so."""
        tally, place = self.tally, self.tally.num_checked
        tally.num_checked += 1
        self._count_texts(report)
        if report.dropped is not None:
            tally.dropped[report.dropped.reason] += 1
            return ()
        notes = report.notes
        if report.source is not None:
            if report.key in self._keys:
                notes = (*notes, Note(NoteKind.DUPLICATE, "it is learnt twice as often"))
            self._keys.add(report.key)
        tally.notes.update(note.kind for note in notes)
        if report.stops:
            tally.num_stopping += 1
            return notes
        law = report.law or UNLABELLED
        tally.laws[law] += 1
        tally.operations[report.operation or UNLABELLED] += 1
        tally.levels.update(str(instruction.level) for instruction in report.instructions)
        if report.source is not None:
            tally.sizes[report.source] += 1
        tally.buckets[report.bucket] += 1
        self._rows[place] = report.index
        self._laws[place] = self._law_numbers.setdefault(law, len(self._law_numbers))
        return notes

    def _count_texts(self, report: RowReport) -> None:
        for instruction in report.instructions:
            for text, num_tokens in zip(self._counting, instruction.num_tokens, strict=True):
                text.num_instructions += 1
                text.longest = max(text.longest, num_tokens)
                text.num_over += num_tokens > text.limit.max_tokens

    def examples(self, per_law: int) -> dict[str, list[int]]:
        """Returns rows of each law that can be used, evenly spaced over those counted; laws in their order of name."""
        chosen: dict[str, list[int]] = {}
        for law, number in sorted(self._law_numbers.items()):
            places = np.flatnonzero(self._laws == number)
            count = min(per_law, len(places))
            chosen[law] = [int(self._rows[places[each * len(places) // count]]) for each in range(count)]
        return chosen
