"""Elo ratings from votes by the published human protocol, and how an accuracy correlates with them.

Shape legend: P orders, N votes, M models.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.streams import stream_seed
from physedit.eval_hooks.arena.votes import ArenaError, Vote, Winner

_SCORE_OF_A = {Winner.A: 1.0, Winner.TIE: 0.5, Winner.B: 0.0}
_TAILS = (0.025, 0.975)
_RESAMPLES_AT_ONCE = 8
"""Ours: so many times 50 orders keep numpy busy, and 27,000 votes below 200 MB."""
_NO_VOTE = -1
"""Fills up an order of fewer votes than others."""


@dataclass(frozen=True, slots=True)
class EloRules:
    """The constants of a rating; the defaults are the published ones.

    Source: PICABench (arXiv 2510.17681v3), figure 6 and its text: start 1000, S 400, K 24, floor 700, 50 rounds, each
    over the votes in a new order.

    Attributes:
        start: rating of a model without votes.
        scale: a difference of so many points means odds of ten to one.
        k_factor: most points that one vote moves.
        floor: no rating falls below it.
        num_rounds: orders of the votes over which ratings are averaged.
    """

    start: float = 1000.0
    scale: float = 400.0
    k_factor: float = 24.0
    floor: float = 700.0
    num_rounds: int = 50


@dataclass(frozen=True, slots=True)
class VoteTable:
    """Votes as arrays ``[N]``: numbers of models and items, and the score of the first model."""

    models: tuple[str, ...]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    score: NDArray[np.float64]
    item: NDArray[np.intp]

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> "VoteTable":
        """Returns the table of at least one vote."""
        models = tuple(sorted({model for vote in votes for model in vote.models}))
        items = {item: number for number, item in enumerate(dict.fromkeys(vote.item for vote in votes))}
        return cls(
            models,
            np.array([models.index(vote.model_a) for vote in votes]),
            np.array([models.index(vote.model_b) for vote in votes]),
            np.array([_SCORE_OF_A[vote.winner] for vote in votes]),
            np.array([items[vote.item] for vote in votes]),
        )


@dataclass(frozen=True, slots=True)
class Rating:
    """What a model has come to.

    Attributes:
        elo: mean over the rounds.
        order_deviation: standard deviation over the rounds: what the order of the votes alone does.
        ci95: from 2.5 to 97.5 % of this mean over resamples of the items, each with all its votes.
        num_wins, num_ties, num_losses: of its votes.
    """

    model: str
    elo: float
    order_deviation: float
    ci95: tuple[float, float]
    num_wins: int
    num_ties: int
    num_losses: int


@dataclass(frozen=True, slots=True)
class Correlation:
    """How accuracy and Elo of several models go together; None where it is not defined."""

    num_models: int
    spearman: float | None
    pearson: float | None


def rate(
    votes: Sequence[Vote], *, seed: int = 0, rules: EloRules | None = None, num_resamples: int = 200
) -> tuple[Rating, ...]:
    """Returns the rating of every model, the best first; a function of its arguments alone.

    Items are resampled and not votes, since votes on one item are not independent.

    Raises:
        ArenaError: no votes.
    """
    if not votes:
        raise ArenaError("There are no votes to rate. Vote on some pairs first.")
    rules = rules or EloRules()
    table = VoteTable.of(votes)
    generator = np.random.default_rng(stream_seed(seed, "arena", "orders"))
    orders = _shuffles(np.arange(len(votes)), rules.num_rounds, generator)
    over_orders, _ = elo_in_orders(table, orders, rules)
    means = np.array(list(_resampled_means(table, rules, num_resamples, generator)))  # [num_resamples, M]
    ratings = [
        _rating(model, votes, over_orders[:, number], means[:, number]) for number, model in enumerate(table.models)
    ]
    return tuple(sorted(ratings, key=lambda rating: (-rating.elo, rating.model)))


def elo_in_orders(
    table: VoteTable, orders: NDArray[np.intp], rules: EloRules
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Returns ratings ``[P, M]`` after the votes in each of the orders ``[P, N]``, and who has had a vote. Pure.

    Source: A. Elo, The Rating of Chessplayers (1978): R += K (s - 1 / (1 + 10^((R_other - R) / S))).
    """
    rows = np.arange(len(orders))
    ratings = np.full((len(orders), len(table.models)), rules.start)
    has_vote = np.zeros(ratings.shape, dtype=bool)
    for vote in orders.T:  # [P]: one vote of every order at a time
        first, second, is_vote = table.first[vote], table.second[vote], vote != _NO_VOTE
        before_a, before_b = ratings[rows, first], ratings[rows, second]
        expected = 1.0 / (1.0 + 10.0 ** ((before_b - before_a) / rules.scale))
        moved = np.where(is_vote, rules.k_factor * (table.score[vote] - expected), 0.0)
        ratings[rows, first] = np.maximum(rules.floor, before_a + moved)
        ratings[rows, second] = np.maximum(rules.floor, before_b - moved)
        has_vote[rows, first] |= is_vote
        has_vote[rows, second] |= is_vote
    return ratings, has_vote


def correlate(accuracy: Mapping[str, float], elo: Mapping[str, float]) -> Correlation:
    """Returns how accuracy and Elo correlate over the models that have both: by rank, and as the paper does. Pure.

    Not defined for fewer than three models, or where all have the same accuracy or Elo.
    """
    models = sorted(accuracy.keys() & elo.keys())
    first, second = (np.array([side[model] for model in models], dtype=np.float64) for side in (accuracy, elo))
    return Correlation(len(models), _pearson(_ranks(first), _ranks(second)), _pearson(first, second))


def _shuffles(votes: NDArray[np.intp], num: int, generator: np.random.Generator) -> NDArray[np.intp]:
    return generator.permuted(np.tile(votes, (num, 1)), axis=1)


def _resampled_means(
    table: VoteTable, rules: EloRules, num_resamples: int, generator: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Yields the mean ratings ``[M]`` of each resample over its orders, NaN for a model that it lacks.

    Some resamples are computed at once; those with fewer votes are filled up.
    """
    of_item = [np.flatnonzero(table.item == number) for number in range(int(table.item.max()) + 1)]
    left = num_resamples
    while left:
        num = min(left, _RESAMPLES_AT_ONCE)
        drawn = [
            np.concatenate([of_item[item] for item in generator.integers(len(of_item), size=len(of_item))])
            for _ in range(num)
        ]
        longest = max(len(votes) for votes in drawn)
        padded = [np.pad(votes, (0, longest - len(votes)), constant_values=_NO_VOTE) for votes in drawn]
        orders = np.concatenate([_shuffles(votes, rules.num_rounds, generator) for votes in padded])
        ratings, has_vote = elo_in_orders(table, orders, rules)
        shape = (num, rules.num_rounds, len(table.models))
        yield from np.where(has_vote.reshape(shape)[:, 0], ratings.reshape(shape).mean(axis=1), np.nan)
        left -= num


def _rating(
    model: str, votes: Sequence[Vote], over_orders: NDArray[np.float64], over_resamples: NDArray[np.float64]
) -> Rating:
    drawn = over_resamples[~np.isnan(over_resamples)]
    low, high = np.quantile(drawn if len(drawn) else over_orders, _TAILS)
    scores = [
        _SCORE_OF_A[vote.winner] if vote.model_a == model else 1.0 - _SCORE_OF_A[vote.winner]
        for vote in votes
        if model in vote.models
    ]
    return Rating(
        model=model,
        elo=float(over_orders.mean()),
        order_deviation=float(over_orders.std()),
        ci95=(float(low), float(high)),
        num_wins=scores.count(1.0),
        num_ties=scores.count(0.5),
        num_losses=scores.count(0.0),
    )


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns ranks from 1; equal values share the mean of theirs."""
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    ranks: NDArray[np.float64] = below + (equal + 1) / 2
    return ranks


def _pearson(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    a, b = first - first.mean(), second - second.mean()
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
