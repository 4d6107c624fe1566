"""The order of a run: which sample, and which prompt level, stands at which global position.

Pure functions of (seed, position). Nothing here knows ranks, batch sizes or history, so a run can start at
any position, and any number of ranks sees the same sequence.

Random bits are Philox's raw 64-bit output, which numpy keeps the same across versions (NEP 19); the methods of
``numpy.random.Generator`` carry no such promise and are not used.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.sample import PromptLevel


def sample_index(position: int, num_samples: int, seed: int) -> int:
    """Returns the row at ``position``: epoch ``position // num_samples`` is a permutation of its own.

    Raises:
        ValueError: no samples, or a negative position.
    """
    if num_samples <= 0:
        raise ValueError(f"An order needs at least one sample, but the data set has {num_samples}.")
    if position < 0:
        raise ValueError(f"A position counts samples from 0, but {position} was asked for.")
    epoch, offset = divmod(position, num_samples)
    return int(_permutation(num_samples, seed, epoch)[offset])


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


# Two epochs: a global batch may straddle a boundary. PICA-100K's permutation takes 0.8 MiB.
@lru_cache(maxsize=2)
def _permutation(num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.argsort(_raw_bits(seed, "order", epoch, num_samples), kind="stable")


def _raw_bits(seed: int, stream: str, counter: int, size: int) -> NDArray[np.uint64]:
    """Returns ``size`` random 64-bit words that belong to (seed, stream, counter)."""
    digest = hashlib.sha256(f"{seed}/{stream}/{counter}".encode()).digest()
    bits: NDArray[np.uint64] = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(size)
    return bits


def _shown(weights: Mapping[PromptLevel, float]) -> str:
    return ", ".join(f"{level.value}: {weight}" for level, weight in weights.items()) or "none"
