"""Which pairs of edits are voted on: equally many of every law, models and items in turn, sides by lot."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from physedit.data_loaders.streams import stream_seed
from physedit.eval_hooks.arena.votes import ArenaError


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models' edits of one item, and which is shown on the left."""

    item: int
    law: str
    left: str
    right: str

    @property
    def identity(self) -> tuple[str, frozenset[str]]:
        """Names the comparison whatever the sides, as votes do."""
        return str(self.item), frozenset((self.left, self.right))


def plan_pairs(
    items: Mapping[str, Sequence[int]], models: Sequence[str], *, seed: int = 0, per_law: int | None = None
) -> tuple[Pair, ...]:
    """Returns the pairs in the order in which they are shown; a function of its arguments alone.

    Laws take turns, so that whoever stops early has voted on all of them about equally often; within a law all pairs of
    models take turns, each with the law's items in an order of its own.

    Args:
        items: indices by law.
        models: at least two names.
        seed: decides items, order and sides.
        per_law: pairs of each law; None for as many as the law with the fewest has.

    Raises:
        ArenaError: fewer than two models, no items, or a law has fewer pairs than asked.
    """
    if len(models) < 2:
        raise ArenaError(f"An arena compares at least two models, but {len(models)} was given. Add a folder.")
    available = {law: len(indices) * len(models) * (len(models) - 1) // 2 for law, indices in items.items()}
    if not available or min(available.values()) == 0:
        raise ArenaError("The folders have no item in common, so there is no pair to vote on.")
    fewest = min(available, key=lambda law: available[law])
    num = available[fewest] if per_law is None else per_law
    if not 1 <= num <= available[fewest]:
        raise ArenaError(
            f"--per-law {num} was asked, but every law must have as many pairs, and {fewest} has {available[fewest]}. "
            f"Ask for 1 to {available[fewest]}."
        )
    by_law = {law: _pairs_of_law(law, indices, models, seed)[:num] for law, indices in sorted(items.items())}
    laws, order = list(by_law), random.Random(stream_seed(seed, "arena/laws", 0))
    planned: list[Pair] = []
    for number in range(num):
        order.shuffle(laws)
        planned += [by_law[law][number] for law in laws]
    return tuple(planned)


def _pairs_of_law(law: str, items: Sequence[int], models: Sequence[str], seed: int) -> list[Pair]:
    lot = random.Random(stream_seed(seed, "arena/law", law))
    matches = list(combinations(sorted(models), 2))
    lot.shuffle(matches)
    of_match = {match: lot.sample(sorted(items), len(items)) for match in matches}
    pairs = []
    for number in range(len(items)):
        for match in matches:
            left, right = match if lot.random() < 0.5 else match[::-1]
            pairs.append(Pair(of_match[match][number], law, left, right))
    return pairs
