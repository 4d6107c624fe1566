import numpy as np
import pytest

from physedit.eval_hooks.compare import change_of, flips_of, pair_records
from physedit.eval_hooks.hook import Flips
from physedit.eval_hooks.metrics.accuracy import Accuracy, ItemAccuracy
from physedit.eval_hooks.metrics.consistency import Consistency
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord


def _record(index: int, corrects: list[bool | None], psnr_db: float | None = None) -> ItemRecord:
    answers = tuple(Answer(n, "?", "Yes", None, "", correct, "", "") for n, correct in enumerate(corrects))
    return ItemRecord(index, "Optics", "Reflection", "add", "superficial", answers, psnr_db, has_edit_area=True)


def _draw(seed: int, share: float, num_items: int = 60) -> list[ItemRecord]:
    generator = np.random.default_rng(seed)
    return [
        _record(i, [bool(generator.random() < share) for _ in range(3 + i % 4)], float(20 + generator.random()))
        for i in range(num_items)
    ]


@pytest.mark.parametrize("metric", [Accuracy(), ItemAccuracy(), Consistency()])
def test_equal_records_change_by_exactly_zero(metric: Accuracy | ItemAccuracy | Consistency) -> None:
    change = change_of(metric, pair_records(_draw(1, 0.5), _draw(1, 0.5)))
    assert (change.change, change.ci95, change.n) == (0.0, (0.0, 0.0), 60)


@pytest.mark.parametrize("metric", [Accuracy(), ItemAccuracy(), Consistency()])
def test_interval_contains_the_change_and_is_the_same_each_time(
    metric: Accuracy | ItemAccuracy | Consistency,
) -> None:
    paired = pair_records(_draw(1, 0.4), _draw(2, 0.7))
    first, second = change_of(metric, paired), change_of(metric, paired)
    assert first == second
    assert first.change is not None
    assert first.ci95 is not None
    assert first.ci95[0] < first.change < first.ci95[1]


def test_interval_agrees_with_the_normal_approximation() -> None:
    base, tuned = _draw(1, 0.4, num_items=400), _draw(2, 0.7, num_items=400)
    differences = [
        np.mean([a.correct for a in after.answers]) - np.mean([a.correct for a in before.answers])
        for before, after in zip(base, tuned, strict=True)
    ]
    half = 1.96 * np.std(differences, ddof=1) / np.sqrt(400)
    ci95 = change_of(ItemAccuracy(), pair_records(base, tuned)).ci95
    assert ci95 is not None
    # 2000 resamples place a 2.5 % quantile to about 6 % of the interval's half width
    assert (ci95[1] - ci95[0]) / 2 == pytest.approx(half, rel=0.1)


def test_only_what_both_sides_answered_is_compared() -> None:
    base = [_record(0, [True, None, False]), _record(1, [None], 20.0)]
    tuned = [_record(0, [True, True, True]), _record(1, [True], None)]
    paired = pair_records(base, tuned)
    change = change_of(Accuracy(), paired)
    assert (change.base, change.tuned, change.n) == (0.5, 1.0, 1)
    assert paired.left_out == 3
    assert change_of(Consistency(), paired).n == 0


def test_flips_count_both_directions() -> None:
    base = [_record(0, [True, False, False]), _record(1, [True, None])]
    tuned = [_record(0, [False, True, True]), _record(1, [True, False])]
    assert flips_of(Accuracy(), pair_records(base, tuned)) == Flips(gained=2, lost=1)


@pytest.mark.parametrize("before", [False, True])
def test_a_single_item_has_no_interval(before: bool) -> None:
    change = change_of(Accuracy(), pair_records([_record(0, [before])], [_record(0, [True])]))
    assert (change.change, change.ci95) == (1.0 - before, None)


def test_different_items_are_refused() -> None:
    with pytest.raises(ValueError, match="same items"):
        pair_records([_record(0, [True])], [_record(1, [True])])
