"""Random orders: which sample, and which prompt level, stands at which global position.

Pure functions of (seed, position). Nothing here knows ranks or history, so a run can start at any position, and any
number of ranks sees the same sequence.

Random bits are Philox's raw 64-bit output, which numpy keeps the same across versions (NEP 19); the methods of
``numpy.random.Generator`` carry no such promise and are not used.

Shape legend: N samples of an epoch, S slots of an epoch, B micro batch, K buckets.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import PromptLevel

EMPTY = -1
"""Stands where a micro batch has no sample left."""
_PORTION = 1 << 13
_NUM_RANGES = 16


def portions(num_rows: int) -> Iterator[slice]:
    """Yields all rows in portions, so that what is held beside a result does not grow with their number."""
    return (slice(first, min(first + _PORTION, num_rows)) for first in range(0, num_rows, _PORTION))


def level_at(position: int, weights: Mapping[PromptLevel, float], seed: int) -> PromptLevel:
    """Draws the prompt level at ``position`` with probabilities proportional to ``weights``.

    Raises:
        ValueError: a negative weight, or none above 0.
    """
    levels = [level for level in PromptLevel if weights.get(level, 0.0) != 0.0]
    shares = np.array([weights[level] for level in levels], dtype=np.float64)
    if not levels or not np.all(np.isfinite(shares)) or np.any(shares < 0):
        raise ValueError(f"Prompt level weights must be 0 or more with at least one above 0, found {_shown(weights)}.")
    # The upper 53 bits make a float64 in [0, 1) exactly.
    draw = float(_raw_bits(seed, "level", position, 1)[0] >> np.uint64(11)) * 2.0**-53
    edges = np.cumsum(shares) / shares.sum()
    return levels[min(int(np.searchsorted(edges, draw, side="right")), len(levels) - 1)]


class PlainEpochs:
    """Epoch after epoch of samples in random order, each once an epoch; no slot is empty."""

    def __init__(self, num_samples: int, *, seed: int, stream: str) -> None:
        """Plans epochs of samples 0 to N - 1; ``stream`` names this order among those of the run.

        Raises:
            ValueError: no samples.
        """
        _refuse_none(num_samples)
        self.num_slots = num_samples
        self._epochs = _Epochs(partial(_permutation, num_samples, seed, stream))

    def at(self, slot: int) -> int:
        """Returns the sample at ``slot``.

        Raises:
            ValueError: a negative slot.
        """
        return self._epochs.at(slot, self.num_slots)


class BucketEpochs:
    """Epochs of micro batches whose samples share a bucket.

    Each sample stands in one slot of every epoch. The last micro batch of a bucket is filled with ``EMPTY``, and the
    micro batches of an epoch stand in random order.
    """

    def __init__(self, buckets: NDArray[np.signedinteger], *, micro_batch: int, seed: int, stream: str) -> None:
        """Plans epochs of samples 0 to N - 1.

        Args:
            buckets: ``[N]``, the bucket of each sample.
            micro_batch: B.
            seed: the run's seed.
            stream: names this order among those of the run.

        Raises:
            ValueError: no samples.
        """
        self._buckets = buckets
        self._micro_batch = micro_batch
        self._seed = seed
        self._stream = stream
        _refuse_none(len(buckets))
        self._counts = np.zeros(int(buckets.max()) + 1, np.int64)  # [K]
        for portion in portions(len(buckets)):
            self._counts += np.bincount(buckets[portion], minlength=len(self._counts))
        self.num_slots = int((-(-self._counts // micro_batch)).sum()) * micro_batch
        self._epochs = _Epochs(self._slots)

    def at(self, slot: int) -> int:
        """Returns the sample at ``slot``, or ``EMPTY``.

        Raises:
            ValueError: a negative slot.
        """
        return self._epochs.at(slot, self.num_slots)

    def _slots(self, epoch: int) -> NDArray[np.int32]:
        """Returns the samples of an epoch's slots, int32 ``[S]``."""
        size, num_batches = self._micro_batch, -(-self._counts // self._micro_batch)
        stands_at = np.empty(self.num_slots // size, np.int32)  # of each micro batch its place in the epoch
        batches = _permutation(len(stands_at), self._seed, f"{self._stream}/batches", epoch)
        stands_at[batches] = np.arange(len(batches), dtype=np.int32)
        shuffled = _permutation(len(self._buckets), self._seed, self._stream, epoch)
        slots = np.full(self.num_slots, EMPTY, np.int32)
        free = (np.cumsum(num_batches) - num_batches) * size  # the next slot of each bucket before that, [K]
        for portion in portions(len(shuffled)):
            buckets = self._buckets[shuffled[portion]]
            order = np.argsort(buckets, kind="stable")
            counts = np.bincount(buckets, minlength=len(free))
            starts = np.cumsum(counts) - counts
            batch, place = np.divmod(np.arange(len(order)) + np.repeat(free - starts, counts), size)
            slots[stands_at[batch].astype(np.int64) * size + place] = shuffled[portion][order]
            free += counts
        return slots


class _Epochs:
    """Looks slots up in epochs and keeps the newest two: a global batch may straddle a boundary."""

    def __init__(self, slots_of: Callable[[int], NDArray[np.int32]]) -> None:
        self._slots_of = slots_of
        self._kept: dict[int, NDArray[np.int32]] = {}

    def at(self, slot: int, num_slots: int) -> int:
        if slot < 0:
            raise ValueError(f"A position counts samples from 0, but {slot} was asked for.")
        epoch, offset = divmod(slot, num_slots)
        if epoch not in self._kept:
            self._kept = {kept: slots for kept, slots in self._kept.items() if abs(kept - epoch) == 1}
            self._kept[epoch] = self._slots_of(epoch)
        return int(self._kept[epoch][offset])

    def __getstate__(self) -> dict[str, object]:
        return {"_slots_of": self._slots_of, "_kept": {}}  # a worker makes its own


def _refuse_none(num_samples: int) -> None:
    if num_samples <= 0:
        raise ValueError(f"An order needs at least one sample, but the data set has {num_samples}.")


def _permutation(num_samples: int, seed: int, stream: str, epoch: int) -> NDArray[np.int32]:
    """Returns the samples in the order of their random words; of equal words the first sample comes first.

    ``np.argsort(words, kind="stable")`` in a third of its time, with little memory beside the result: samples are
    sorted by the upper halves of their words, in portions by the uppermost bits. The few whose upper halves are equal
    stand side by side then, and whole words decide.
    """
    order, upper = np.empty(num_samples, np.int32), np.empty(num_samples, np.uint32)
    for portion, words in _raw_portions(seed, stream, epoch, num_samples):
        upper[portion] = words >> np.uint64(32)
    done, step = 0, (1 << 32) // _NUM_RANGES
    tied: list[NDArray[np.intp]] = []
    for first in range(0, 1 << 32, step):
        samples = np.flatnonzero((upper >= first) & (upper <= first + step - 1)).astype(np.int32)
        samples = samples[_sorted_places(upper[samples])]
        order[done : done + len(samples)] = samples
        tied.append(done + _tied_places(upper[samples]))
        done += len(samples)
    places = np.concatenate(tied)
    if len(places):
        whole = _words_of(order[places], seed, stream, epoch, num_samples)
        order[places] = order[places][np.argsort(whole, kind="stable")]
    return order


def _tied_places(ordered: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Returns the places of values that a neighbour shares."""
    is_tied = np.zeros(len(ordered) + 1, bool)
    is_tied[1:-1] = ordered[1:] == ordered[:-1]
    return np.flatnonzero(is_tied[1:] | is_tied[:-1])


def _sorted_places(words: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Returns ``np.argsort(words, kind="stable")`` by two sorts of 16 bits each, which numpy does by counting."""
    order = np.argsort(words.astype(np.uint16), kind="stable")
    return order[np.argsort((words >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]


def _words_of(samples: NDArray[np.int32], seed: int, stream: str, epoch: int, num_samples: int) -> NDArray[np.uint64]:
    """Returns the words of some samples."""
    found = np.empty(len(samples), np.uint64)
    for portion, words in _raw_portions(seed, stream, epoch, num_samples):
        is_here = (samples >= portion.start) & (samples < portion.stop)
        found[is_here] = words[samples[is_here] - portion.start]
    return found


def _raw_bits(seed: int, stream: str, counter: int, size: int) -> NDArray[np.uint64]:
    """Returns ``size`` random 64-bit words that belong to (seed, stream, counter)."""
    bits: NDArray[np.uint64] = _philox(seed, stream, counter).random_raw(size)
    return bits


def _raw_portions(seed: int, stream: str, counter: int, size: int) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """Yields ``_raw_bits`` in portions."""
    philox = _philox(seed, stream, counter)
    for portion in portions(size):
        yield portion, philox.random_raw(portion.stop - portion.start)


def _philox(seed: int, stream: str, counter: int) -> np.random.Philox:
    digest = hashlib.sha256(f"{seed}/{stream}/{counter}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little"))


def _shown(weights: Mapping[PromptLevel, float]) -> str:
    return ", ".join(f"{level.value}: {weight}" for level, weight in weights.items()) or "none"
