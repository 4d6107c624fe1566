"""What stands at each position of a run: levels, laws, members and buckets together."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.plain_pairs import SUPERFICIAL, PlainPairs, plan_of

from physedit.data_loaders.mixture import Mixture
from physedit.data_loaders.order import PlainEpochs, level_at
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.slots import UNFIT_SIZE, LevelMix, RunPlan, Slot

ALL_LEVELS = dict.fromkeys(PromptLevel, 1.0)


def rows_of(plan: RunPlan, first: int, last: int) -> list[int | None]:
    return [plan.at(position).row for position in range(first, last)]


def test_equal_pictures_keep_the_order_of_the_demo(tmp_path: Path) -> None:
    plan = plan_of(PlainPairs(2500), tmp_path, micro_batch=8, seed=0)
    plain = PlainEpochs(2500, seed=0, stream="order")
    weights = SUPERFICIAL.weights
    for position in (*range(0, 64), *range(2490, 2510), *range(6300, 6400)):
        assert plan.at(position) == Slot(plain.at(position), level_at(position, weights, 0))
    assert (plan.unit, plan.num_empty) == (1, 0)


def test_micro_batches_of_one_need_no_buckets_and_no_empty_slot(tmp_path: Path) -> None:
    plan = plan_of(PlainPairs(50, sizes=[(2, 2), (4, 2), (2, 6)]), tmp_path, micro_batch=1)
    plain = PlainEpochs(50, seed=4, stream="order")
    assert rows_of(plan, 0, 120) == [plain.at(position) for position in range(120)]
    assert (plan.num_buckets, plan.unit, plan.num_empty) == (3, 1, 0)


def test_no_micro_batch_mixes_buckets(tmp_path: Path) -> None:
    dataset = PlainPairs(50, sizes=[(16, 16), (32, 16), (17, 18), (16, 48)])
    plan = plan_of(dataset, tmp_path, micro_batch=4, multiple_px=16)
    assert plan.num_buckets == 3
    for first in range(0, 400, 4):
        rows = [row for row in rows_of(plan, first, first + 4) if row is not None]
        assert len({(h // 16, w // 16) for h, w in map(dataset.size, rows)}) == 1


def test_rows_with_a_problem_or_an_unfit_size_are_named_and_never_shown(tmp_path: Path) -> None:
    from physedit.data_loaders.buckets import find_buckets
    from physedit.data_loaders.mixture import members_of
    from physedit.data_loaders.sample import PictureSizeError
    from physedit.data_loaders.size_index import SizeIndex

    def sizes_of(height: int, width: int) -> tuple[int, int]:
        if width > 10 * height:
            raise PictureSizeError("too long")
        return height, width

    dataset = PlainPairs(10, sizes=[(2, 2)] * 7 + [(1, 50)] + [(2, 2)] * 2, problems={3: RowProblem.NO_TARGET})
    index = SizeIndex.of(dataset, tmp_path, num_workers=0)
    buckets = find_buckets(index.rows["source"], sizes_of)
    plan = RunPlan(index, buckets, members_of(dataset), seed=0, levels=SUPERFICIAL, micro_batch=4)
    assert list(plan.unusable) == [(3, RowProblem.NO_TARGET), (7, UNFIT_SIZE)]
    assert sorted(map(str, rows_of(plan, 0, 8))) == [str(row) for row in (0, 1, 2, 4, 5, 6, 8, 9)]
    assert (plan.num_rows, plan.num_usable) == (10, 8)


def test_set_without_a_row_that_can_be_used_is_refused_with_the_reasons(tmp_path: Path) -> None:
    broken = PlainPairs(2, problems={0: RowProblem.NO_SOURCE, 1: RowProblem.NO_SOURCE})
    with pytest.raises(ValueError, match=r"No row can be used \(2 rows: no source picture\)"):
        plan_of(broken, tmp_path)


@pytest.mark.parametrize("sizes", [[(2, 2)], [(2, 2), (4, 2), (2, 6)]])
def test_each_shows_every_row_at_every_level_once_an_epoch(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    weights = {PromptLevel.SUPERFICIAL: 1.0, PromptLevel.EXPLICIT: 1.0}
    plan = plan_of(PlainPairs(11, sizes=sizes), tmp_path, micro_batch=4, levels=LevelMix(weights, "each"))
    slots = [plan.at(position) for position in range(plan.num_samples + plan.num_empty)]
    shown = Counter((slot.row, slot.level) for slot in slots if slot.row is not None)
    assert shown == {(row, level): 1 for row in range(11) for level in weights}
    assert plan.num_samples == 22


def test_draw_takes_one_level_each_time_by_weight(tmp_path: Path) -> None:
    weights = {PromptLevel.SUPERFICIAL: 1.0, PromptLevel.EXPLICIT: 3.0}
    plan = plan_of(PlainPairs(10), tmp_path, levels=LevelMix(weights))
    counts = Counter(plan.at(position).level for position in range(4000))
    assert set(counts) == set(weights)
    assert abs(counts[PromptLevel.SUPERFICIAL] - 1000) < 110  # four standard deviations of a binomial


LAWS = ["Reflection"] * 8 + ["Refraction"] * 3 + ["Causality"]


def test_balanced_laws_are_shown_equally_often_in_every_window(tmp_path: Path) -> None:
    dataset = PlainPairs(24, laws=LAWS)
    plan = plan_of(dataset, tmp_path, micro_batch=4, balance="law")
    laws = [dataset.laws[row % 12] for row in rows_of(plan, 0, 300) if row is not None]
    for first in range(0, 300, 3):
        assert len(set(laws[first : first + 3])) == 3
    assert not any(one == other for one, other in pairwise(laws))


def test_each_law_goes_through_epochs_of_its_own(tmp_path: Path) -> None:
    dataset = PlainPairs(24, laws=LAWS)
    plan = plan_of(dataset, tmp_path, balance="law")
    by_law: dict[str | None, list[int]] = {}
    for row in rows_of(plan, 0, 144):
        assert row is not None
        by_law.setdefault(dataset.laws[row % 12], []).append(row)
    for law, rows in by_law.items():
        num_rows = 2 * LAWS.count(str(law))
        epochs = [rows[i : i + num_rows] for i in range(0, len(rows) - num_rows + 1, num_rows)]
        assert epochs
        assert all(len(set(epoch)) == num_rows for epoch in epochs)


def test_balanced_laws_with_buckets_take_turns_by_micro_batch(tmp_path: Path) -> None:
    dataset = PlainPairs(48, laws=LAWS, sizes=[(2, 2), (4, 2)])
    plan = plan_of(dataset, tmp_path, micro_batch=4, balance="law")
    laws = [
        {dataset.laws[row % 12] for row in rows_of(plan, first, first + 4) if row is not None}
        for first in range(0, 240, 4)
    ]
    assert all(len(each) == 1 for each in laws)
    assert all(len(set.union(*laws[first : first + 3])) == 3 for first in range(0, 60, 3))


def test_balance_without_laws_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"order.balance=law needs a law for every row, but 5 of 10 rows have none"):
        plan_of(PlainPairs(10, laws=["Reflection", None]), tmp_path, balance="law")


def mixture(**levels: str) -> Mixture:
    return Mixture(
        members={"big": PlainPairs(30, title="big"), "small": PlainPairs(5, title="small")},
        weights={"big": 0.7, "small": 0.3},
        levels=levels,
    )


def test_members_keep_their_shares_in_every_window_and_run_through_their_own_epochs(tmp_path: Path) -> None:
    plan = plan_of(mixture(), tmp_path, micro_batch=4)
    rows = [row for row in rows_of(plan, 0, 400) if row is not None]
    is_small = [row >= 30 for row in rows]
    for length in (1, 7, 10, 64):
        for first in range(0, 400 - length):
            assert abs(sum(is_small[first : first + length]) - 0.3 * length) < 1 + 1e-9
    small = [row - 30 for row in rows if row >= 30]
    assert all(sorted(small[i : i + 5]) == [0, 1, 2, 3, 4] for i in range(0, 120, 5))
    big = [row for row in rows if row < 30]
    assert all(sorted(big[i : i + 30]) == list(range(30)) for i in range(0, 270, 30))


def test_a_member_with_a_level_of_its_own_is_shown_at_it(tmp_path: Path) -> None:
    plan = plan_of(mixture(small="explicit"), tmp_path, levels=LevelMix({PromptLevel.INTERMEDIATE: 1.0}))
    levels = {(slot.row or 0) >= 30: slot.level for slot in map(plan.at, range(50))}
    assert levels == {False: PromptLevel.INTERMEDIATE, True: PromptLevel.EXPLICIT}


def test_each_with_a_member_of_one_level_repeats_none_of_its_rows(tmp_path: Path) -> None:
    plan = plan_of(mixture(small="explicit"), tmp_path, levels=LevelMix(ALL_LEVELS, "each"))
    assert plan.num_samples == 3 * 30 + 5


def test_laws_are_balanced_within_each_member(tmp_path: Path) -> None:
    first = PlainPairs(12, title="a", laws=LAWS)
    mixed = Mixture(members={"a": first, "b": PlainPairs(4, title="b", laws=["Deformation"])}, weights={"a": 3, "b": 1})
    plan = plan_of(mixed, tmp_path, balance="law")
    index = plan.index
    laws = Counter(index.laws[index.rows["law"][row]] for row in rows_of(plan, 0, 400))
    assert laws == {"Reflection": 100, "Refraction": 100, "Causality": 100, "Deformation": 100}


def test_digest_tells_plans_apart_that_give_other_samples(tmp_path: Path) -> None:
    sizes = [(2, 2), (4, 2)]
    same = plan_of(PlainPairs(10, sizes=sizes), tmp_path, micro_batch=2).digest
    assert plan_of(PlainPairs(10, sizes=sizes, title="moved"), tmp_path, micro_batch=2).digest == same
    others = [
        plan_of(PlainPairs(10, sizes=sizes), tmp_path, micro_batch=4),
        plan_of(PlainPairs(11, sizes=sizes), tmp_path, micro_batch=2),
        plan_of(PlainPairs(10, sizes=[(2, 2), (2, 2), (4, 2)]), tmp_path, micro_batch=2),
        plan_of(PlainPairs(10, sizes=sizes, problems={9: "x"}), tmp_path, micro_batch=2),
    ]
    assert len({same, *(plan.digest for plan in others)}) == 5


def test_micro_batch_may_change_where_the_order_does_not_depend_on_it(tmp_path: Path) -> None:
    plans = [plan_of(PlainPairs(10), tmp_path, micro_batch=micro_batch) for micro_batch in (1, 2, 8)]
    assert len({plan.digest for plan in plans}) == 1
