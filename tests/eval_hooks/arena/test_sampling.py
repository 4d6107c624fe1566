from collections import Counter

import pytest

from physedit.eval_hooks.arena.sampling import plan_pairs
from physedit.eval_hooks.arena.votes import ArenaError

ITEMS = {"Reflection": list(range(40)), "Global": list(range(40, 70)), "Refraction": list(range(70, 80))}


def test_every_law_has_as_many_pairs_as_the_smallest_and_none_stands_twice() -> None:
    pairs = plan_pairs(ITEMS, ["x", "y", "z"])
    assert Counter(pair.law for pair in pairs) == dict.fromkeys(ITEMS, 30)
    assert len({pair.identity for pair in pairs}) == 90
    assert all(pair.item in ITEMS[pair.law] for pair in pairs)


def test_models_and_sides_are_balanced_and_laws_take_turns() -> None:
    pairs = plan_pairs(ITEMS, ["x", "y", "z"], per_law=12)
    assert Counter(frozenset((pair.left, pair.right)) for pair in pairs) == {
        frozenset("xy"): 12, frozenset("xz"): 12, frozenset("yz"): 12,
    }  # fmt: skip
    for start in range(0, len(pairs), 3):
        assert {pair.law for pair in pairs[start : start + 3]} == set(ITEMS)
    many = plan_pairs({"A": range(400)}, ["x", "y"])
    assert 160 < sum(pair.left == "x" for pair in many) < 240  # 4 standard deviations of a fair lot


def test_the_plan_is_of_the_seed_alone() -> None:
    assert plan_pairs(ITEMS, ["x", "y"], seed=1) == plan_pairs(dict(reversed(ITEMS.items())), ["y", "x"], seed=1)
    assert plan_pairs(ITEMS, ["x", "y"], seed=1) != plan_pairs(ITEMS, ["x", "y"], seed=2)


@pytest.mark.parametrize(
    ("items", "models", "per_law", "word"),
    [
        (ITEMS, ["x"], None, "at least two"),
        ({}, ["x", "y"], None, "no item in common"),
        (ITEMS, ["x", "y"], 11, "Refraction has 10"),
        (ITEMS, ["x", "y"], 0, "1 to 10"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    items: dict[str, list[int]], models: list[str], per_law: int | None, word: str
) -> None:
    with pytest.raises(ArenaError, match=word):
        plan_pairs(items, models, per_law=per_law)
