"""A checkpoint beside the base: the change of a metric on the same items, its interval, and which answers flipped."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from physedit.eval_hooks.hook import Flips, MetricChange
from physedit.eval_hooks.metrics.accuracy import Accuracy
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord, Metric, Tally, ratio_of_sums

NUM_RESAMPLES = 2000
_BOOTSTRAP_SEED = 2510_17681  # PICABench's arXiv number; any constant would do
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class PairedRecords:
    """The same items on both sides, each with the questions that were answered on both.

    ``left_out`` counts questions and PSNR values that only one side has.
    """

    base: tuple[ItemRecord, ...]
    tuned: tuple[ItemRecord, ...]
    left_out: int


def pair_records(base: Sequence[ItemRecord], tuned: Sequence[ItemRecord]) -> PairedRecords:
    """Returns what both sides have, so that a difference comes from the pictures alone.

    Raises:
        ValueError: the two sides are not evaluations of the same items.
    """
    ours, theirs = {r.index: r for r in tuned}, {r.index: r for r in base}
    if ours.keys() != theirs.keys():
        differing = sorted(ours.keys() ^ theirs.keys())
        raise ValueError(
            f"Only evaluations of the same items can be compared: {len(theirs)} base and {len(ours)} tuned items, "
            f"{len(differing)} on one side only (first {differing[:5]}). Evaluate both on the same benchmark."
        )
    pairs = [_pair(theirs[index], ours[index]) for index in sorted(ours)]
    return PairedRecords(
        base=tuple(first for first, _, _ in pairs),
        tuned=tuple(second for _, second, _ in pairs),
        left_out=sum(left_out for _, _, left_out in pairs),
    )


def change_of(metric: Metric, paired: PairedRecords) -> MetricChange:
    """Returns base, tuned and their difference with the paired bootstrap interval over items.

    The interval is exactly (0, 0) when nothing differs, and None for a single item, which tells nothing of others.
    """
    tallies = [
        (first, second)
        for base, tuned in zip(paired.base, paired.tuned, strict=True)
        if (first := metric.tally(base)) is not None and (second := metric.tally(tuned)) is not None
    ]
    return change_of_tallies([pair[0] for pair in tallies], [pair[1] for pair in tallies])


def change_of_tallies(before: Sequence[Tally], after: Sequence[Tally]) -> MetricChange:
    """Returns the change from ``before`` to ``after``, what the same items add on both sides, as ``change_of`` does."""
    if not before:
        return MetricChange(base=None, tuned=None, change=None, ci95=None, n=0)
    base_value, tuned_value = ratio_of_sums(before).value, ratio_of_sums(after).value
    assert base_value is not None
    assert tuned_value is not None
    return MetricChange(
        base=base_value,
        tuned=tuned_value,
        change=tuned_value - base_value,
        ci95=_interval(before, after),
        n=len(before),
    )


def flips_of(metric: Accuracy, paired: PairedRecords) -> Flips:
    """Returns how many of the metric's questions went from wrong to right and from right to wrong."""
    both = [
        (before.correct, after.correct)
        for base, tuned in zip(paired.base, paired.tuned, strict=True)
        for before, after in zip(base.answers, tuned.answers, strict=True)
        if metric.counts(before)
    ]
    return Flips(gained=both.count((False, True)), lost=both.count((True, False)))


def _pair(base: ItemRecord, tuned: ItemRecord) -> tuple[ItemRecord, ItemRecord, int]:
    before, after = _answered(base), _answered(tuned)
    common = before.keys() & after.keys()
    has_psnr = base.psnr_db is not None and tuned.psnr_db is not None
    left_out = len(before.keys() ^ after.keys()) + ((base.psnr_db is None) != (tuned.psnr_db is None))
    kept_base, kept_tuned = (
        replace(
            record,
            answers=tuple(answers[number] for number in sorted(common)),
            psnr_db=record.psnr_db if has_psnr else None,
        )
        for record, answers in ((base, before), (tuned, after))
    )
    return kept_base, kept_tuned, left_out


def _answered(record: ItemRecord) -> dict[int, Answer]:
    return {answer.number: answer for answer in record.answers if answer.correct is not None}


def _interval(before: Sequence[Tally], after: Sequence[Tally]) -> tuple[float, float] | None:
    base, tuned = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)  # [N, 2]
    n = len(base)
    if n == 1:
        return None
    if np.array_equal(base, tuned):
        return 0.0, 0.0
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    weights = generator.multinomial(n, np.full(n, 1 / n), size=NUM_RESAMPLES).astype(np.float64)  # [R, N]
    changes = _ratios(weights, tuned) - _ratios(weights, base)
    low, high = np.quantile(changes, _TAILS)
    return float(low), float(high)


def _ratios(weights: NDArray[np.float64], tallies: NDArray[np.float64]) -> NDArray[np.float64]:
    numerators, denominators = (weights @ tallies).T
    ratios: NDArray[np.float64] = numerators / denominators
    return ratios
