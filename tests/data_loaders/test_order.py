import hashlib
import pickle
from collections import Counter

import numpy as np
import pytest

from physedit.data_loaders import order as order_module
from physedit.data_loaders.order import EMPTY, BucketEpochs, PlainEpochs, level_at, portions
from physedit.data_loaders.sample import PromptLevel

GOLDEN_ROWS = [8, 4, 6, 2, 7, 0, 5, 9, 1, 3, 2, 3]
GOLDEN_LEVELS = "iisiseieiess"
EVEN = dict.fromkeys(PromptLevel, 1.0)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_each_epoch_covers_the_set_once(epoch: int) -> None:
    order = PlainEpochs(101, seed=3, stream="order")
    rows = [order.at(position) for position in range(101 * epoch, 101 * (epoch + 1))]
    assert sorted(rows) == list(range(101))
    assert rows != sorted(rows)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        (seed, epoch): tuple(PlainEpochs(50, seed=seed, stream="order").at(50 * epoch + i) for i in range(50))
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4


def test_order_is_that_of_earlier_versions() -> None:
    """A run resumed under a newer release must go on with the same samples."""
    order = PlainEpochs(10, seed=0, stream="order")
    assert [order.at(i) for i in range(12)] == GOLDEN_ROWS
    assert [level_at(i, EVEN, seed=0).value[0] for i in range(12)] == list(GOLDEN_LEVELS)


def words_of(num_samples: int, epoch: int) -> np.ndarray:
    """The random words that an order is defined by, as numpy gives them at once."""
    digest = hashlib.sha256(f"7/order/{epoch}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(num_samples)


@pytest.mark.parametrize("num_samples", [1, 2, 8191, 8192, 8193, 100_001])
def test_order_is_that_of_a_stable_sort_of_random_words(num_samples: int) -> None:
    """100,001 words have about one pair that is equal in its upper 32 bits."""
    order = PlainEpochs(num_samples, seed=7, stream="order")
    for epoch in range(3):
        slots = range(epoch * num_samples, (epoch + 1) * num_samples)
        assert [order.at(slot) for slot in slots] == np.argsort(words_of(num_samples, epoch), kind="stable").tolist()


@pytest.mark.parametrize("kept_bits", [0xF000001F00000003, 0xFFFFFFFF, 0x1, 0xF << 60])
def test_equal_words_keep_the_order_of_samples(kept_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of(20_000, 0) & np.uint64(kept_bits)
    monkeypatch.setattr(
        order_module, "_raw_portions", lambda *_: ((portion, words[portion]) for portion in portions(len(words)))
    )
    order = PlainEpochs(20_000, seed=7, stream="order")
    assert [order.at(slot) for slot in range(20_000)] == np.argsort(words, kind="stable").tolist()


def slots_by_sorting(buckets: np.ndarray, size: int, epoch: int) -> list[int]:
    """The slots of an epoch as they are defined: samples by bucket and word, filled up, micro batches by word."""
    shuffled = np.argsort(words_of(len(buckets), epoch), kind="stable")
    batches: list[list[int]] = []
    for bucket in np.unique(buckets):
        samples = [int(sample) for sample in shuffled if buckets[sample] == bucket]
        samples += [EMPTY] * (-len(samples) % size)
        batches += [samples[first : first + size] for first in range(0, len(samples), size)]
    digest = hashlib.sha256(f"7/order/batches/{epoch}".encode()).digest()
    words = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(len(batches))
    return [sample for batch in np.argsort(words, kind="stable") for sample in batches[batch]]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_epochs_of_buckets_are_those_of_earlier_versions(size: int) -> None:
    buckets = (np.random.default_rng(0).integers(0, 6, 10_000) ** 2).astype(np.int16)
    order = BucketEpochs(buckets, micro_batch=size, seed=7, stream="order")
    for epoch in (0, 2):
        slots = range(epoch * order.num_slots, (epoch + 1) * order.num_slots)
        assert [order.at(slot) for slot in slots] == slots_by_sorting(buckets, size, epoch)


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


BUCKETS = np.array([0] * 13 + [1] * 5 + [2] * 4 + [0], np.int32)


def bucket_epochs(seed: int = 3) -> BucketEpochs:
    return BucketEpochs(BUCKETS, micro_batch=4, seed=seed, stream="order")


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_each_epoch_of_buckets_covers_the_set_once_and_no_micro_batch_is_mixed_or_empty(epoch: int) -> None:
    order = bucket_epochs()
    assert order.num_slots == 4 * (4 + 2 + 1)
    slots = [order.at(slot) for slot in range(epoch * order.num_slots, (epoch + 1) * order.num_slots)]
    assert sorted(sample for sample in slots if sample != EMPTY) == list(range(len(BUCKETS)))
    for first in range(0, len(slots), 4):
        kinds = {BUCKETS[sample] for sample in slots[first : first + 4] if sample != EMPTY}
        assert len(kinds) == 1


def test_micro_batches_of_an_epoch_are_shuffled_over_buckets() -> None:
    order = bucket_epochs()
    kinds = [
        [int(BUCKETS[order.at(28 * epoch + 4 * batch)]) for batch in range(7)] for epoch in range(20)
    ]  # the first slot of a micro batch is never empty
    assert len({tuple(each) for each in kinds}) > 10
    assert all(each != sorted(each) for each in kinds[:1])


def test_rows_of_a_bucket_meet_other_rows_in_another_epoch() -> None:
    order = bucket_epochs()

    def groups(epoch: int) -> set[frozenset[int]]:
        return {frozenset(order.at(28 * epoch + 4 * b + i) for i in range(4)) for b in range(7)}

    assert len(groups(0) & groups(1)) <= 1  # the bucket of exactly four rows stays one micro batch


def test_lookups_do_not_depend_on_what_was_looked_up_before() -> None:
    forward = [bucket_epochs().at(slot) for slot in range(80)]
    order = bucket_epochs()
    assert [order.at(slot) for slot in reversed(range(80))] == forward[::-1]
    assert [pickle.loads(pickle.dumps(order)).at(slot) for slot in range(80)] == forward


def test_empty_set_and_negative_position_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        PlainEpochs(0, seed=0, stream="order")
    with pytest.raises(ValueError, match="-1"):
        PlainEpochs(5, seed=0, stream="order").at(-1)
