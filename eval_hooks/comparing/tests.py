"""Whether two runs differ by more than chance, on the items that both answered. Pure but for reading records.

Items are what is resampled and flipped, since the questions of an item are about one picture and not independent. What
is tested is whether these two adapters differ on items like these; whether a setting is better with another training
seed is another question, which only more seeds answer.

Source: paired bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap (1993), and for system comparisons
Koehn, EMNLP 2004. Sign-flip permutation: Noreen, Computer Intensive Methods for Testing Hypotheses (1989); a sampled
p counts the observed case: Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 9 (2010). McNemar, Psychometrika 12 (1947),
exact binomial form. Holm, Scand. J. Statist. 6 (1979).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from physedit.eval_hooks.compare import change_of, flips_of, pair_records
from physedit.eval_hooks.metrics.accuracy import Accuracy
from physedit.eval_hooks.metrics.metric import ItemRecord, Tally
from physedit.eval_hooks.picabench.measure import has_records, read_records
from physedit.eval_hooks.picabench.measures import Measures, PicaBenchMeasures
from physedit.eval_hooks.picabench.scene_measures import SceneMeasures

NUM_FLIPS = 9999
"""Random sign flips of a test; the smallest p is 1 / (NUM_FLIPS + 1)."""
ALL_FLIPS_UP_TO = 12
"""So many items that differ, or fewer: every flip is counted and p is exact."""
_SEED = 2510_17681
_CHUNK = 1000
_MEASURES: Mapping[str, Measures] = {"picabench": PicaBenchMeasures(), "scenes": SceneMeasures()}
Records = Mapping[int, ItemRecord]
"""What is known of a run's items, by index."""


@dataclass(frozen=True, slots=True)
class PairTest:
    """The second run minus the first, on the items that both answered.

    Attributes:
        hook, key: of the metric.
        first, second: names of the runs.
        difference: of the metric.
        ci95: its paired bootstrap interval over items; None for a single item.
        n: items.
        p: two-sided sign-flip permutation p; 1 where nothing differs.
        p_holm: ``p`` after Holm's correction over all tests of the comparison.
        gained, lost: questions right only in the second, or only in the first; None for metrics without questions.
        p_mcnemar: exact McNemar p over questions, which takes them for independent; a check beside ``p``.
    """

    hook: str
    key: str
    first: str
    second: str
    difference: float
    ci95: tuple[float, float] | None
    n: int
    p: float
    p_holm: float
    gained: int | None = None
    lost: int | None = None
    p_mcnemar: float | None = None


def records_of(folder: Path) -> Records:
    """Returns what judge and measurement found on each item of an evaluation, none for one of numbers alone."""
    return {record.index: record for record in read_records(folder)} if has_records(folder) else {}


def pair_tests(
    hook: str,
    measures_id: str,
    records: Mapping[str, Records],
    keys: Sequence[str],
    pairs: Iterable[tuple[str, str]] | None = None,
) -> list[PairTest]:
    """Returns the tests of every pair of runs on each metric, not yet corrected.

    Args:
        hook: the hook's name.
        measures_id: as the reports hold it; sets of measures that are not known give no tests.
        records: by run.
        keys: of the metrics to test.
        pairs: which; None for all.
    """
    measures = _MEASURES.get(measures_id.rpartition("-")[0])
    if measures is None:
        return []
    chosen = combinations(records, 2) if pairs is None else pairs
    found = [
        _test(hook, measures, key, names, (records[names[0]], records[names[1]])) for names in chosen for key in keys
    ]
    return [test for test in found if test is not None]


def holm(tests: Sequence[PairTest]) -> list[PairTest]:
    """Returns the tests with ``p_holm`` over all of them, in the order given."""
    corrected = holm_corrected([test.p for test in tests])
    return [replace(test, p_holm=p) for test, p in zip(tests, corrected, strict=True)]


def holm_corrected(values: Sequence[float]) -> list[float]:
    """Returns p-values after Holm's step-down correction, in the order given."""
    corrected = [1.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = highest
    return corrected


def mcnemar_p(gained: int, lost: int) -> float:
    """Returns the exact two-sided p that flips go either way with the same chance; 1 without flips."""
    flips, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(flips, k) for k in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**flips))


def sign_flip_p(before: Sequence[Tally], after: Sequence[Tally]) -> float:
    """Returns the two-sided p that either side's result of an item could as well be the other's.

    Args:
        before: what items add on one side.
        after: what the same items add on the other; the weights of an item are equal, as both answered its questions.
    """
    apart: NDArray[np.float64] = np.asarray(
        [b.total - a.total for a, b in zip(before, after, strict=True)], dtype=np.float64
    )
    apart = apart[apart != 0]
    if len(apart) == 0:
        return 1.0
    observed = abs(apart.sum()) * (1 - 1e-12)  # ties are as extreme, whatever the order of summing
    if len(apart) <= ALL_FLIPS_UP_TO:
        signs = _all_signs(len(apart))
        return float(np.mean(np.abs(signs @ apart) >= observed))
    generator = np.random.default_rng(_SEED)
    as_extreme, left = 0, NUM_FLIPS
    while left > 0:
        drawn = generator.integers(0, 2, size=(min(_CHUNK, left), len(apart)), dtype=np.int8)
        as_extreme += int(np.sum(np.abs((2.0 * drawn - 1) @ apart) >= observed))
        left -= len(drawn)
    return (as_extreme + 1) / (NUM_FLIPS + 1)


def _all_signs(n: int) -> NDArray[np.float64]:
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1  # [2^n, n]
    return (2 * bits - 1).astype(np.float64)


def _test(
    hook: str, measures: Measures, key: str, names: tuple[str, str], sides: tuple[Records, Records]
) -> PairTest | None:
    """The test of a pair, or None if the metric is defined on no item that both have."""
    common = sorted(sides[0].keys() & sides[1].keys())
    paired = pair_records([sides[0][i] for i in common], [sides[1][i] for i in common])
    measure = measures.by_key(hook, paired.tuned).get(key)
    if measure is None:
        return None
    paired = replace(
        paired,
        base=tuple(record for record in paired.base if measure.applies(record)),
        tuned=tuple(record for record in paired.tuned if measure.applies(record)),
    )
    change = change_of(measure.metric, paired)
    if change.change is None:
        return None
    tallies = [
        (a, b)
        for first, second in zip(paired.base, paired.tuned, strict=True)
        if (a := measure.metric.tally(first)) is not None and (b := measure.metric.tally(second)) is not None
    ]
    p = sign_flip_p([a for a, _ in tallies], [b for _, b in tallies])
    test = PairTest(hook, key, *names, change.change, change.ci95, change.n, p, p)
    if not isinstance(measure.metric, Accuracy):
        return test
    flips = flips_of(measure.metric, paired)
    return replace(test, gained=flips.gained, lost=flips.lost, p_mcnemar=mcnemar_p(flips.gained, flips.lost))
