"""Accuracy of the judge's answers against the benchmark's.

Source: PICABench (arXiv 2510.17681). Its paper averages over questions (eq. A.3), its script over items
(PicaEval_gpt.py); the two differ because items carry three to seven questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from physedit.eval_hooks.hook import MetricValue
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord, Tally, ratio_of_sums


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of right answers among the answered questions, each question weighing the same, in 0..1.

    Attributes:
        kind: only questions of this kind; None for all.
    """

    kind: str | None = None

    def counts(self, answer: Answer) -> bool:
        """True if the question was answered and is of the metric's kind."""
        return answer.correct is not None and self.kind in (None, answer.kind)

    def tally(self, record: ItemRecord) -> Tally | None:
        """Returns right and answered questions of an item, or None if none was answered."""
        answers = [answer for answer in record.answers if self.counts(answer)]
        return Tally(sum(a.correct is True for a in answers), len(answers)) if answers else None

    def score(self, records: Sequence[ItemRecord]) -> MetricValue:
        """Returns the accuracy; ``n`` counts items."""
        return ratio_of_sums([tally for record in records if (tally := self.tally(record)) is not None])


@dataclass(frozen=True, slots=True)
class ItemAccuracy:
    """Mean over items of their share of right answers, each item weighing the same, in 0..1."""

    def tally(self, record: ItemRecord) -> Tally | None:
        """Returns an item's share of right answers, or None if none was answered."""
        right_of_answered = Accuracy().tally(record)
        return right_of_answered and Tally(right_of_answered.total / right_of_answered.weight, 1.0)

    def score(self, records: Sequence[ItemRecord]) -> MetricValue:
        """Returns the mean; ``n`` counts items."""
        return ratio_of_sums([tally for record in records if (tally := self.tally(record)) is not None])
