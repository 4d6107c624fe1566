"""What an arena has to tell: ratings, accuracies beside them, and how the two go together."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.arena.contestants import accuracies_of
from physedit.eval_hooks.arena.elo import Correlation, EloRules, Rating, correlate, rate
from physedit.eval_hooks.arena.votes import ArenaError, read_votes


@dataclass(frozen=True, slots=True)
class Standing:
    """The ratings of the models, the best first.

    Attributes:
        num_votes: of the file.
        num_items: that they are about.
        votes_by_law: where the file tells laws.
        rules: of the rating.
        seed: of orders and resamples.
        ratings: of the models.
        accuracy: by model, 0 to 1; empty without folders.
        correlation: of accuracy and Elo; None without folders.
        notes: what a reader must know.
    """

    num_votes: int
    num_items: int
    votes_by_law: Mapping[str, int]
    rules: EloRules
    seed: int
    ratings: tuple[Rating, ...]
    accuracy: Mapping[str, float]
    correlation: Correlation | None
    notes: tuple[str, ...]


def standing_of(
    votes_file: Path, folders: Mapping[str, Path], *, seed: int = 0, rounds: int = 50, resamples: int = 200
) -> Standing:
    """Returns the standing of the models that a file of votes compares.

    Args:
        votes_file: a CSV file.
        folders: judged, by model; empty for ratings alone.
        seed: of orders and resamples.
        rounds: orders of the votes.
        resamples: of the items.

    Raises:
        ArenaError: votes or folders that cannot be used, alone or together.
        DamagedFileError: a report that is no JSON.
    """
    votes = read_votes(votes_file, folders or None)
    named = {model for vote in votes for model in vote.models}
    if idle := sorted(folders.keys() - named):
        raise ArenaError(f"{votes_file} holds no vote on {', '.join(idle)}. Vote on it first, or leave its folder out.")
    rules = EloRules(num_rounds=rounds)
    ratings = rate(votes, seed=seed, rules=rules, num_resamples=resamples)
    accuracies = accuracies_of(folders) if folders else None
    elo = {rating.model: rating.elo for rating in ratings}
    correlation = None if accuracies is None else correlate(accuracies.by_model, elo)
    notes = [
        f"Elo: start {rules.start:g}, S {rules.scale:g}, K {rules.k_factor:g}, floor {rules.floor:g}, mean of "
        f"{rules.num_rounds} orders; intervals over {resamples} resamples of the items."
    ]
    if accuracies is not None and correlation is not None:
        notes.append(_in_words(correlation, accuracies.source))
    return Standing(
        num_votes=len(votes),
        num_items=len({vote.item for vote in votes}),
        votes_by_law=dict(sorted(Counter(vote.law for vote in votes if vote.law is not None).items())),
        rules=rules,
        seed=seed,
        ratings=ratings,
        accuracy={} if accuracies is None else accuracies.by_model,
        correlation=correlation,
        notes=tuple(notes),
    )


def _in_words(correlation: Correlation, source: str) -> str:
    if correlation.spearman is None or correlation.pearson is None:
        return (
            f"Accuracy (from {source}) and Elo of {correlation.num_models} models: a correlation needs at least 3 that "
            "differ in both."
        )
    return (
        f"Accuracy (from {source}) and Elo of {correlation.num_models} models: Spearman {correlation.spearman:+.3f}, "
        f"Pearson {correlation.pearson:+.3f} (published for nine models: Pearson 0.95 with GPT-5, 0.92 with "
        "Qwen2.5-VL-72B)."
    )
