"""Random orders: which sample, and which prompt level, stands at which global position.

Pure functions of (seed, position). Nothing here knows ranks or history, so a run can start at any position, and any
number of ranks sees the same sequence.

Random bits are Philox's raw 64-bit output, which numpy keeps the same across versions (NEP 19); the methods of
``numpy.random.Generator`` carry no such promise and are not used.

Shape legend: N samples of an epoch, S slots of an epoch, B micro batch.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import PromptLevel

EMPTY = -1
"""Stands where a micro batch has no sample left."""


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

    def __init__(self, buckets: NDArray[np.int32], *, micro_batch: int, seed: int, stream: str) -> None:
        """Plans epochs of samples 0 to N - 1.

        Args:
            buckets: int32 ``[N]``, the bucket of each sample.
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
        _, self._counts = np.unique(buckets, return_counts=True)
        self.num_slots = int((-(-self._counts // micro_batch)).sum()) * micro_batch
        self._epochs = _Epochs(self._slots)

    def at(self, slot: int) -> int:
        """Returns the sample at ``slot``, or ``EMPTY``.

        Raises:
            ValueError: a negative slot.
        """
        return self._epochs.at(slot, self.num_slots)

    def _slots(self, epoch: int) -> NDArray[np.int64]:
        """Returns the samples of an epoch's slots, int64 ``[S]``."""
        size, counts = self._micro_batch, self._counts
        shuffled = _permutation(len(self._buckets), self._seed, self._stream, epoch)
        by_bucket = shuffled[np.argsort(self._buckets[shuffled], kind="stable")]
        starts = np.cumsum(counts) - counts
        num_batches = -(-counts // size)
        first_slots = (np.cumsum(num_batches) - num_batches) * size
        slots = np.full(self.num_slots, EMPTY, np.int64)
        slots[np.arange(len(by_bucket)) + np.repeat(first_slots - starts, counts)] = by_bucket
        batches = slots.reshape(-1, size)
        order = _permutation(len(batches), self._seed, f"{self._stream}/batches", epoch)
        return batches[order].reshape(-1)


class _Epochs:
    """Looks slots up in epochs and keeps the newest two: a global batch may straddle a boundary."""

    def __init__(self, slots_of: Callable[[int], NDArray[np.int64]]) -> None:
        self._slots_of = slots_of
        self._kept: dict[int, NDArray[np.int64]] = {}

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


def _permutation(num_samples: int, seed: int, stream: str, epoch: int) -> NDArray[np.int64]:
    return np.argsort(_raw_bits(seed, stream, epoch, num_samples), kind="stable")


def _raw_bits(seed: int, stream: str, counter: int, size: int) -> NDArray[np.uint64]:
    """Returns ``size`` random 64-bit words that belong to (seed, stream, counter)."""
    digest = hashlib.sha256(f"{seed}/{stream}/{counter}".encode()).digest()
    bits: NDArray[np.uint64] = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(size)
    return bits


def _shown(weights: Mapping[PromptLevel, float]) -> str:
    return ", ".join(f"{level.value}: {weight}" for level, weight in weights.items()) or "none"
