from collections import Counter
from itertools import accumulate

import pytest

from physedit.data_loaders.turns import MAX_PERIOD, Turns

WEIGHTS = [[1.0], [0.7, 0.3], [1.0, 1.0], [5, 1], [0.5, 0.3, 0.2], [3, 2, 1], [1.0] * 8, [0.9, 0.05, 0.03, 0.02]]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_counts_from_the_start_follow_the_weights_to_within_one(weights: list[float]) -> None:
    turns, shares = Turns(weights), [weight / sum(weights) for weight in weights]
    counts = [0] * len(weights)
    for place in range(500):
        who, before = turns.at(place)
        assert before == counts[who]
        counts[who] += 1
        for count, share in zip(counts, shares, strict=True):
            assert abs(count - share * (place + 1)) < 1


@pytest.mark.parametrize("weights", WEIGHTS)
def test_counts_of_any_window_follow_the_weights(weights: list[float]) -> None:
    """To within one for two, and two for more: no sequence keeps every window within one for all weights."""
    limit = 1 if len(weights) <= 2 else 2
    turns = Turns(weights)
    sequence = [turns.at(place)[0] for place in range(200)]
    for who, weight in enumerate(weights):
        counts = [0, *accumulate(int(each == who) for each in sequence)]
        for first in range(200):
            for last in range(first, 201):
                expected = (last - first) * weight / sum(weights)
                assert abs(counts[last] - counts[first] - expected) < limit + 1e-9


def test_equal_weights_take_turns() -> None:
    turns = Turns([1.0] * 4)
    assert all(
        Counter(turns.at(4 * block + i)[0] for i in range(4)) == dict.fromkeys(range(4), 1) for block in range(5)
    )


def test_any_place_is_found_without_those_before_it() -> None:
    who, before = Turns([0.7, 0.3]).at(10**12)
    assert (who, before) == (0, 7 * 10**11)


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_without_meaning_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="numbers above 0"):
        Turns(weights)


def test_ratios_that_hardly_repeat_are_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_PERIOD} are possible. Use rounder numbers"):
        Turns([0.123457, 0.876549])
