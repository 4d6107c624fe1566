"""When a hopeless trial is stopped: wandb's ``early_terminate`` block, by successive halving as trials go by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from physedit.launch.plan import LaunchError

LEAST_ETA = 1.01
"""Ours: a smaller step makes thousands of brackets that differ in nothing."""
_MOST = 10**9
"""Ours: beyond any number of values that a trial logs."""


@dataclass(frozen=True, slots=True)
class Hyperband:
    """The brackets of a sweep, counted in values of the metric that a trial has logged.

    At each bracket a trial is compared by its best value up to there with all trials that got as far. It goes on if it
    is among the best 1 / eta of them, itself counted and rounded up, or as good as one of those.
    Source: Li et al., Hyperband (arXiv 1603.06560); wandb's documentation of ``early_terminate``, which counts so too.
    """

    brackets: tuple[int, ...]
    eta: float = 3.0

    @staticmethod
    def from_mapping(block: Mapping[str, object]) -> "Hyperband":
        """Returns the rule of an ``early_terminate`` block.

        Raises:
            LaunchError: another type, or numbers that make no brackets.
        """
        kind = block.get("type")
        if kind != "hyperband":
            raise LaunchError(f"early_terminate.type: {kind} is not known. Known: hyperband")
        unknown = sorted(block.keys() - {"type", "min_iter", "max_iter", "s", "eta"})
        if unknown:
            raise LaunchError(f"early_terminate: {', '.join(unknown)} has no effect here")
        eta = block.get("eta", 3)
        if not isinstance(eta, int | float) or isinstance(eta, bool) or not LEAST_ETA <= eta <= _MOST:
            raise LaunchError(f"early_terminate.eta: {eta} must be a number from {LEAST_ETA} to {_MOST}")
        return Hyperband(_brackets(block, float(eta)), float(eta))

    def stops(self, history: Sequence[float], others: Sequence[Sequence[float]], *, maximize: bool) -> bool:
        """True if the trial that has logged ``history`` so far is to be stopped.

        Args:
            history: its values, oldest first.
            others: those of the other trials, finished and stopped ones alike.
            maximize: whether higher values are better.
        """
        reached = [bracket for bracket in self.brackets if bracket <= len(history)]
        if not reached:
            return False
        sign = -1.0 if maximize else 1.0
        best = [min(sign * value for value in each[: reached[-1]]) for each in (history, *others)
                if len(each) >= reached[-1]]  # fmt: skip
        num_kept = math.ceil(len(best) / self.eta)
        return best[0] > sorted(best)[num_kept - 1]


def _brackets(block: Mapping[str, object], eta: float) -> tuple[int, ...]:
    if ("min_iter" in block) == ("max_iter" in block):
        raise LaunchError("early_terminate must have either min_iter or max_iter")
    if "min_iter" in block:
        if "s" in block:
            raise LaunchError("early_terminate.s belongs to max_iter, and has no effect with min_iter")
        first = _count(block, "min_iter")
        # Enough for any run: the last lies beyond a million values.
        return tuple(int(first * eta**power) for power in range(math.ceil(math.log(1e6, eta)) + 1))
    largest, number = _count(block, "max_iter"), _count(block, "s")
    num_above_0 = math.ceil(math.log(largest, eta))  # later ones are below one value
    found = {int(largest / eta**power) for power in range(1, min(number, num_above_0) + 1)} - {0}
    if not found:
        raise LaunchError(f"early_terminate.max_iter: {largest} is too small for a bracket with eta {eta:g}")
    return tuple(sorted(found))


def _count(block: Mapping[str, object], key: str) -> int:
    value = block.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise LaunchError(f"early_terminate.{key}: {value} must be a whole number from 1 to {_MOST}")
    return value
