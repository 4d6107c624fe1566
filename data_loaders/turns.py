"""Taking turns by weight: who is next, at any place of an endless sequence. Pure.

Shape legend: K who take turns, P places after which the sequence repeats.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 10_000
"""Ours: the table of one period is made at the start, in about 0.1 s at this length."""


class Turns:
    """Deals places to K in proportion to their weights.

    After any number of places from the start, each has had less than one turn more or less than its share.

    Source: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980): of those who lag by at least
    1 / (2K - 2) the one with the earliest deadline; the lag of each stays within 1 - 1 / (2K - 2).
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Makes the table of one period.

        Args:
            weights: each above 0; only their ratios count.

        Raises:
            ValueError: no weights, one that is not above 0, or ratios that repeat only after ``MAX_PERIOD`` places.
        """
        if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(f"Weights must be numbers above 0, found {', '.join(map(str, weights)) or 'none'}.")
        # By its decimals: 0.1 is one tenth and not the float nearest to it.
        exact = [Fraction(str(weight)) for weight in weights]
        shares = [weight / sum(exact) for weight in exact]
        self._period = math.lcm(*(share.denominator for share in shares))
        if self._period > MAX_PERIOD:
            raise ValueError(
                f"The ratios of the weights {', '.join(map(str, weights))} repeat only after {self._period} samples; "
                f"at most {MAX_PERIOD} are possible. Use rounder numbers, such as 0.7 and 0.3."
            )
        self._quotas = [int(share * self._period) for share in shares]
        self._who, self._before = _table(self._quotas, self._period)

    def at(self, place: int) -> tuple[int, int]:
        """Returns who has the turn at ``place``, and how many turns it had before."""
        period, offset = divmod(place, self._period)
        who = int(self._who[offset])
        return who, period * self._quotas[who] + int(self._before[offset])


def _table(quotas: Sequence[int], period: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns who has each place of a period, and its number of earlier turns within the period; ``[P]`` each."""
    who, before = np.zeros(period, np.int64), np.arange(period, dtype=np.int64)
    if len(quotas) == 1:
        return who, before
    done, slack = [0] * len(quotas), 2 * len(quotas) - 2
    for place in range(period):
        # Times P * (2K - 2), so that all is whole numbers.
        lags = [slack * (quota * (place + 1) - period * had) for quota, had in zip(quotas, done, strict=True)]
        chosen = min(
            (k for k, lag in enumerate(lags) if lag >= period),
            key=lambda k: Fraction(period * (slack - 1) - lags[k], quotas[k]),
        )
        who[place], before[place] = chosen, done[chosen]
        done[chosen] += 1
    return who, before
