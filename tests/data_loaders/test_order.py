from collections import Counter

import pytest

from physedit.data_loaders.order import level_at, sample_index
from physedit.data_loaders.sample import PromptLevel

GOLDEN_ROWS = [8, 4, 6, 2, 7, 0, 5, 9, 1, 3, 2, 3]
GOLDEN_LEVELS = "iisiseieiess"
EVEN = dict.fromkeys(PromptLevel, 1.0)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_each_epoch_covers_the_set_once(epoch: int) -> None:
    rows = [sample_index(position, 101, seed=3) for position in range(101 * epoch, 101 * (epoch + 1))]
    assert sorted(rows) == list(range(101))
    assert rows != sorted(rows)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        (seed, epoch): tuple(sample_index(50 * epoch + i, 50, seed) for i in range(50))
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4


def test_order_is_that_of_earlier_versions() -> None:
    """A run resumed under a newer release must go on with the same samples."""
    assert [sample_index(i, 10, seed=0) for i in range(12)] == GOLDEN_ROWS
    assert [level_at(i, EVEN, seed=0).value[0] for i in range(12)] == list(GOLDEN_LEVELS)


def test_levels_follow_their_weights() -> None:
    weights = {PromptLevel.SUPERFICIAL: 1.0, PromptLevel.INTERMEDIATE: 0.0, PromptLevel.EXPLICIT: 3.0}
    counts = Counter(level_at(position, weights, seed=1) for position in range(4000))
    assert counts[PromptLevel.INTERMEDIATE] == 0
    # Four standard deviations of a binomial with p = 1/4: 110.
    assert abs(counts[PromptLevel.SUPERFICIAL] - 1000) < 110


def test_level_does_not_depend_on_the_order_of_weights() -> None:
    backwards = dict(reversed(EVEN.items()))
    assert all(level_at(i, EVEN, 5) == level_at(i, backwards, 5) for i in range(50))


@pytest.mark.parametrize(
    "weights", [{}, {PromptLevel.EXPLICIT: 0.0}, {PromptLevel.EXPLICIT: -1.0}, {PromptLevel.EXPLICIT: float("nan")}]
)
def test_weights_that_cannot_be_drawn_from_are_refused(weights: dict[PromptLevel, float]) -> None:
    with pytest.raises(ValueError, match="Prompt level weights"):
        level_at(0, weights, seed=0)


def test_empty_set_and_negative_position_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        sample_index(0, 0, seed=0)
    with pytest.raises(ValueError, match="-1"):
        sample_index(-1, 5, seed=0)
