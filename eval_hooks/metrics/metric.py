"""What a metric is: a ratio of sums over items, so that items can be paired and resampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from physedit.eval_hooks.hook import MetricValue


@dataclass(frozen=True, slots=True)
class Answer:
    """A judge's answer to one question.

    Attributes:
        number: place of the question in its item.
        question, reference: what was asked, and ``"Yes"`` or ``"No"``.
        kind: what the question is about, where the benchmark tells (``"physics"``, ``"semantic"``), else None.
        verdict: ``yes``, ``no``, ``unparsed``, ``refused`` or ``error``.
        correct: None unless the verdict is yes or no: an unanswered question is neither right nor wrong.
        raw, explanation: the judge's words.
    """

    number: int
    question: str
    reference: str
    kind: str | None
    verdict: str
    correct: bool | None
    raw: str
    explanation: str


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """Everything measured on one edited picture.

    ``psnr_db``, and ``psnr_512_db`` over pictures squeezed to a square, are None where they are not defined;
    ``has_edit_area`` tells whether they leave out the edit's region.
    """

    index: int
    category: str
    law: str
    operation: str
    level: str
    answers: tuple[Answer, ...]
    psnr_db: float | None
    has_edit_area: bool
    psnr_512_db: float | None = None


class Tally(NamedTuple):
    """What an item adds to the numerator and to the denominator of a metric."""

    total: float
    weight: float


class Metric(Protocol):
    """A number over items."""

    def tally(self, record: ItemRecord) -> Tally | None:
        """Returns what an item adds, or None if the metric is not defined on it."""
        ...

    def score(self, records: Sequence[ItemRecord]) -> MetricValue:
        """Returns the metric over ``records``, None without items on which it is defined."""
        ...


def ratio_of_sums(tallies: Sequence[Tally]) -> MetricValue:
    """Returns the sum of totals over the sum of weights, with its error over items.

    The error is the linearised one of a ratio of sums; with a weight of 1 per item it is that of the mean.

    Source: Cochran, Sampling Techniques, 3rd ed., chapter 6, without the finite population factor.
    """
    if not tallies:
        return MetricValue(value=None, standard_error=None, n=0)
    totals, weights = np.asarray(tallies, dtype=np.float64).T
    value = float(totals.sum() / weights.sum())
    n = len(tallies)
    if n == 1:
        return MetricValue(value=value, standard_error=None, n=1)
    spread = float(np.square(totals - value * weights).sum()) * n / (n - 1)
    return MetricValue(value=value, standard_error=spread**0.5 / float(weights.sum()), n=n)
