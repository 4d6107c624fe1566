"""Which items of a benchmark are used: all, some spread over the rows, or a fixed choice of every law. Pure."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence

from physedit.eval_hooks.picabench.benchmark import BenchmarkItem


def select(
    items: Sequence[BenchmarkItem], *, limit: int | None = None, per_law: int | None = None
) -> tuple[BenchmarkItem, ...]:
    """Returns the items in use, in their order.

    Args:
        items: of the whole benchmark.
        limit: so many, spread evenly over the rows; None for all.
        per_law: so many of each law, or all that it has, chosen by their contents; None for all.
    """
    if per_law is not None:
        items = _of_each_law(items, per_law)
    if limit is None or limit >= len(items):
        return tuple(items)
    return tuple(items[position * len(items) // limit] for position in range(limit))


def part_in_words(limit: int | None, per_law: int | None) -> str | None:
    """Returns how ``select`` chooses, for a note beside the numbers; None if it takes all."""
    if per_law is not None:
        return f"up to {per_law} of every law"
    return None if limit is None else "spread over the benchmark"


def shuffled(items: Sequence[BenchmarkItem]) -> tuple[BenchmarkItem, ...]:
    """Returns the items in an order that only their contents decide: its beginning is a fair sample of them."""
    return tuple(sorted(items, key=lambda item: (_draw(item), item.index)))


def _of_each_law(items: Sequence[BenchmarkItem], per_law: int) -> tuple[BenchmarkItem, ...]:
    by_law: dict[str, list[BenchmarkItem]] = defaultdict(list)
    for item in shuffled(items):
        by_law[item.law].append(item)
    chosen = [item for of_law in by_law.values() for item in of_law[:per_law]]
    return tuple(sorted(chosen, key=lambda item: item.index))


def _draw(item: BenchmarkItem) -> str:
    """Returns a hash of what the item is, so that no choice depends on which rows stand around it."""
    asked = [[question.text, question.answer] for question in item.questions]
    words = [item.category, item.law, item.operation, dict(item.prompts), asked]
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    digest.update(item.encoded)
    return digest.hexdigest()
