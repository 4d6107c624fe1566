import random
from collections.abc import Sequence

import numpy as np
import pytest

from physedit.eval_hooks.arena.elo import EloRules, VoteTable, correlate, elo_in_orders, rate
from physedit.eval_hooks.arena.votes import ArenaError, Vote, Winner

RULES = EloRules()


def elo_in_order(votes: Sequence[Vote]) -> dict[str, float]:
    """Returns the ratings after the votes in this order."""
    table = VoteTable.of(votes)
    ratings, _ = elo_in_orders(table, np.arange(len(votes))[None], RULES)
    return dict(zip(table.models, ratings[0].tolist(), strict=True))


def test_the_rules_are_the_published_ones() -> None:
    assert EloRules(start=1000.0, scale=400.0, k_factor=24.0, floor=700.0, num_rounds=50) == RULES


def test_ratings_move_by_hand_counted_points() -> None:
    first = Vote("1", "x", "y", Winner.A)
    assert elo_in_order([first]) == {"x": 1012.0, "y": 988.0}
    # Now x is expected to win with 1 / (1 + 10^(-24/400)) = 0.5345; a tie moves it by 24 (0.5 - 0.5345) = -0.827.
    tied = elo_in_order([first, Vote("2", "y", "x", Winner.TIE)])
    assert tied["x"] == pytest.approx(1012 - 0.827, abs=1e-3)
    assert tied["x"] + tied["y"] == pytest.approx(2000)


def test_no_rating_falls_below_the_floor() -> None:
    beaten = elo_in_order([Vote(str(n), "x", "y", Winner.A) for n in range(2000)])
    assert beaten["y"] == 700.0
    assert beaten["x"] > 1300.0


def test_orders_of_unlike_length_are_rated_at_once_as_alone() -> None:
    votes = drawn_votes({"x": 900.0, "y": 1000.0, "z": 1100.0}, 30)
    table = VoteTable.of(votes)
    orders = np.stack([np.arange(30), np.pad(np.arange(9, -1, -1), (5, 15), constant_values=-1)])
    ratings, has_vote = elo_in_orders(table, orders, RULES)
    for row, order in zip(ratings, (votes, votes[9::-1]), strict=True):
        assert dict(zip(table.models, row, strict=True)) == pytest.approx(elo_in_order(order))
    assert has_vote.all()


def test_the_side_does_not_matter() -> None:
    shown = [Vote("1", "x", "y", Winner.A), Vote("2", "x", "y", Winner.B), Vote("3", "x", "y", Winner.TIE)]
    swapped = [Vote("1", "y", "x", Winner.B), Vote("2", "y", "x", Winner.A), Vote("3", "y", "x", Winner.TIE)]
    assert elo_in_order(shown) == pytest.approx(elo_in_order(swapped))


def drawn_votes(strengths: dict[str, float], num: int, seed: int = 0) -> list[Vote]:
    """Votes as the model of Elo would have them."""
    lot, votes = random.Random(seed), []
    for item in range(num):
        a, b = lot.sample(sorted(strengths), 2)
        wins = lot.random() < 1 / (1 + 10 ** ((strengths[b] - strengths[a]) / 400))
        votes.append(Vote(str(item), a, b, Winner.A if wins else Winner.B))
    return votes


def test_strengths_are_found_again_within_their_intervals() -> None:
    strengths = {"weak": 850.0, "middle": 1000.0, "strong": 1150.0}
    ratings = rate(drawn_votes(strengths, 1500), num_resamples=100)
    assert [rating.model for rating in ratings] == ["strong", "middle", "weak"]
    for rating in ratings:
        assert rating.ci95[0] < rating.elo < rating.ci95[1]
        assert rating.ci95[0] < strengths[rating.model] < rating.ci95[1]
        # 1,000 votes a model: a standard error of about 11 points; a single order moves by 30 to 40
        assert 20 < rating.ci95[1] - rating.ci95[0] < 90
        assert 20 < rating.order_deviation < 60


def test_the_same_seed_gives_the_same_ratings_and_the_order_of_the_file_hardly_matters() -> None:
    votes = drawn_votes({"x": 900.0, "y": 1100.0}, 200)
    first = rate(votes, seed=3, num_resamples=20)
    assert first == rate(votes, seed=3, num_resamples=20)
    assert first != rate(votes, seed=4, num_resamples=20)
    backwards = {rating.model: rating.elo for rating in rate(votes[::-1], seed=3, num_resamples=20)}
    for rating in first:
        assert backwards[rating.model] == pytest.approx(rating.elo, abs=20)  # three standard errors of 50 orders


def test_wins_ties_and_losses_are_counted() -> None:
    votes = [Vote("1", "x", "y", Winner.A), Vote("1", "y", "x", Winner.TIE), Vote("2", "x", "z", Winner.B)]
    found = {r.model: (r.num_wins, r.num_ties, r.num_losses) for r in rate(votes, num_resamples=10)}
    assert found == {"x": (1, 1, 1), "y": (0, 1, 1), "z": (1, 0, 0)}


def test_without_votes_there_is_no_rating() -> None:
    with pytest.raises(ArenaError, match="no votes"):
        rate([])


def test_correlations_of_a_worked_example() -> None:
    accuracy = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "without elo": 0.9}
    elo = {"a": 900.0, "b": 1100.0, "c": 1000.0, "d": 1200.0, "without accuracy": 1.0}
    found = correlate(accuracy, elo)
    assert found.num_models == 4
    assert found.spearman == pytest.approx(0.8)  # 1 - 6 (0 + 1 + 1 + 0) / (4 (16 - 1))
    expected = np.corrcoef([0.1, 0.2, 0.3, 0.4], [900, 1100, 1000, 1200])[0, 1]
    assert found.pearson == pytest.approx(expected)


def test_equal_values_share_a_rank_and_constant_ones_have_no_correlation() -> None:
    tied = correlate({"a": 0.1, "b": 0.1, "c": 0.3}, {"a": 1.0, "b": 2.0, "c": 3.0})
    assert tied.spearman == pytest.approx(np.corrcoef([1.5, 1.5, 3.0], [1, 2, 3])[0, 1])
    constant = correlate(dict.fromkeys("abc", 0.5), {"a": 1.0, "b": 2.0, "c": 3.0})
    assert (constant.spearman, constant.pearson) == (None, None)
    assert correlate({"a": 0.1, "b": 0.2}, {"a": 1.0, "b": 2.0}).spearman is None
