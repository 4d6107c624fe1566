"""The plan of a run: what each slot, a global position, holds.

A run is a sequence of slots. Each holds a row and a prompt level, or nothing, as a pure function of (size index, seed,
position). Slots of one micro batch share a bucket. Where all rows share one, or a micro batch is one sample, the plan
does not depend on the micro batch, and no slot is empty.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.buckets import NO_BUCKET, Buckets
from physedit.data_loaders.order import EMPTY, BucketEpochs, PlainEpochs, level_at, portions
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.size_index import NONE, SizeIndex
from physedit.data_loaders.turns import Turns

UNFIT_SIZE = "a size that the editor does not take"
_LARGE = 0.99
"""Quantile of the bytes of a pair; see ``RunPlan.large_pair_bytes``."""

_Rows = range | NDArray[np.int32]
"""Ascending numbers of rows; a range costs nothing and is what most sets have."""
_Kind = TypeVar("_Kind", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Member:
    """Rows of a data set that have a share of their own.

    Attributes:
        name: unique among the members; empty if there is one alone.
        first: its first row.
        num_rows: its rows are ``first`` to ``first + num_rows - 1``.
        weight: its share, in proportion to those of the others.
        level: the level of its instructions, or None for that of the run.
    """

    name: str
    first: int
    num_rows: int
    weight: float
    level: PromptLevel | None


@dataclass(frozen=True, slots=True)
class LevelMix:
    """Which prompt level a row is shown at.

    Attributes:
        weights: a level with weight 0 is not shown.
        mode: ``draw``: one level each time, drawn in proportion. ``each``: once an epoch at each level.
    """

    weights: Mapping[PromptLevel, float]
    mode: Literal["draw", "each"] = "draw"

    @property
    def shown(self) -> tuple[PromptLevel, ...]:
        """The levels with a weight."""
        return tuple(level for level in PromptLevel if self.weights.get(level, 0.0) > 0)


@dataclass(frozen=True, slots=True)
class Slot:
    """What stands at a position: ``row`` is None if nothing does."""

    row: int | None
    level: PromptLevel


class RunPlan:
    """Maps positions to slots. Picklable: worker processes hold copies."""

    def __init__(
        self,
        index: SizeIndex,
        buckets: Buckets,
        members: Sequence[Member],
        *,
        seed: int,
        levels: LevelMix,
        micro_batch: int,
        balance: Literal["none", "law"] = "none",
    ) -> None:
        """Plans the run; nothing is read.

        Args:
            index: of all rows.
            buckets: of all rows.
            members: whose rows together are all rows.
            seed: of the run.
            levels: the prompt levels.
            micro_batch: slots that are read at once; each micro batch begins at a multiple of it.
            balance: ``law`` lets the laws of a member take turns, so that each is shown equally often.

        Raises:
            ValueError: no row that can be used, a row without the law that ``balance`` needs, or weights that cannot
                be followed.
        """
        self.index = index
        self._buckets = buckets
        self._seed = seed
        self.levels = levels
        self._usable = (index.rows["problem"] == NONE) & (buckets.numbers != NO_BUCKET)  # [N]
        self.num_buckets = self._num_buckets()
        self.unit = micro_batch if self.num_buckets > 1 else 1
        self._leaves: list[_Leaf] = []
        branches = [self._branch(member, balance) for member in members]
        self._root = _taking_turns(branches, [member.weight for member in members])
        level_at(0, levels.weights, seed)  # refuses weights that cannot be drawn from

    @property
    def num_rows(self) -> int:
        """All rows, whether they can be used or not."""
        return len(self._usable)

    @property
    def num_usable(self) -> int:
        """Rows that are shown."""
        return int(self._usable.sum())

    @property
    def shown(self) -> Sequence[tuple[int, tuple[PromptLevel, ...]]]:
        """Rows that are shown, in ascending order, each with the levels it is shown at."""
        return sorted((int(row), leaf.levels) for leaf in self._leaves for row in leaf.rows)

    @property
    def num_samples(self) -> int:
        """Samples of one epoch of every member, and law where laws are balanced."""
        return sum(leaf.num_samples for leaf in self._leaves)

    @property
    def num_empty(self) -> int:
        """Slots of those epochs that hold nothing."""
        return sum(leaf.epochs.num_slots for leaf in self._leaves) - self.num_samples

    @property
    def num_fitted(self) -> int:
        """Rows in use whose target is not of their source's size."""
        source, target = self.index.rows["source"], self.index.rows["target"]
        differ = (source[:, 0] != target[:, 0]) | (source[:, 1] != target[:, 1])
        return int((differ & self._usable).sum())

    @property
    def large_pair_bytes(self) -> int:
        """Bytes of the pixels of a pair, source and target, that at most one in a hundred exceeds."""
        pixels = np.zeros(self.num_rows, np.uint32)  # each picture has at most MAX_PIXELS
        for portion in portions(self.num_rows):
            for name in ("source", "target"):
                sides = self.index.rows[name][portion].astype(np.uint32)
                pixels[portion] += sides[:, 0] * sides[:, 1]
        pixels[~self._usable] = 0
        rank = math.ceil(_LARGE * (self.num_usable - 1)) + self.num_rows - self.num_usable
        pixels.partition(rank)
        return 3 * int(pixels[rank])

    @property
    def unusable(self) -> Sequence[tuple[int, str]]:
        """Rows that are never shown, and why."""
        return [(row, self._problem(row)) for row in np.flatnonzero(~self._usable).tolist()]

    @property
    def digest(self) -> str:
        """Names what stands where: equal digests and settings give the same samples at the same positions."""
        content = hashlib.sha256(f"{self.unit}".encode())
        for leaf in self._leaves:
            content.update(np.asarray(leaf.rows, np.int64).tobytes())
            if self.unit > 1:
                _, numbers = np.unique(_taken(self._buckets.numbers, leaf.rows), return_inverse=True)
                content.update(numbers.astype(np.int64).tobytes())
        return content.hexdigest()[:32]

    def at(self, position: int) -> Slot:
        """Returns what stands at ``position``."""
        place, offset = divmod(position, self.unit)
        node = self._root
        while isinstance(node, _Branch):
            child, place = node.turns.at(place)
            node = node.children[child]
        sample = node.epochs.at(place * self.unit + offset)
        if sample == EMPTY:
            return Slot(None, node.levels[0])
        row, which = divmod(sample, node.times)
        level = node.levels[which]
        if node.is_drawn:
            level = level_at(position, self.levels.weights, self._seed)
        return Slot(int(node.rows[row]), level)

    def _num_buckets(self) -> int:
        is_used = np.zeros(len(self._buckets.sizes), bool)
        for portion in portions(self.num_rows):
            is_used[self._buckets.numbers[portion][self._usable[portion]]] = True
        return int(is_used.sum())

    def _problem(self, row: int) -> str:
        number = int(self.index.rows["problem"][row])
        return UNFIT_SIZE if number == NONE else self.index.problems[number]

    def _branch(self, member: Member, balance: str) -> "_Leaf | _Branch":
        is_usable = self._usable[member.first : member.first + member.num_rows]
        rows: _Rows = range(member.first, member.first + member.num_rows)
        if not is_usable.all():
            rows = (member.first + np.flatnonzero(is_usable)).astype(np.int32)
        of_whom = f" of {member.name}" if member.name else ""
        if len(rows) == 0:
            reasons = Counter(reason for row, reason in self.unusable if 0 <= row - member.first < member.num_rows)
            found = ", ".join(f"{count} rows: {reason}" for reason, count in reasons.most_common(5)) or "no rows"
            raise ValueError(f"No row{of_whom} can be used ({found}). Look at the path and the columns.")
        stream = f"order/{member.name}" if member.name else "order"
        if balance == "none":
            return self._leaf(rows, member, stream)
        laws, numbered = _taken(self.index.rows["law"], rows), np.asarray(rows, np.int32)
        lacking = numbered[laws == NONE]
        if len(lacking):
            raise ValueError(
                f"order.balance=law needs a law for every row, but {len(lacking)} of {len(rows)} rows{of_whom} have "
                f"none, the first of them number {lacking[0]}. Name the column (data.law), or use order.balance=none."
            )
        named = sorted((self.index.laws[number], number) for number in np.unique(laws).tolist())
        leaves = [self._leaf(numbered[laws == number], member, f"{stream}/{law}") for law, number in named]
        return _taking_turns(leaves, [1.0] * len(leaves))

    def _leaf(self, rows: _Rows, member: Member, stream: str) -> "_Leaf":
        shown = (member.level,) if member.level is not None else self.levels.shown
        is_drawn = member.level is None and self.levels.mode == "draw"
        times = 1 if is_drawn else len(shown)
        epochs: PlainEpochs | BucketEpochs
        if self.unit == 1:
            epochs = PlainEpochs(len(rows) * times, seed=self._seed, stream=stream)
        else:
            numbers = _taken(self._buckets.numbers, rows)
            numbers = numbers if times == 1 else np.repeat(numbers, times)
            epochs = BucketEpochs(numbers, micro_batch=self.unit, seed=self._seed, stream=stream)
        self._leaves.append(_Leaf(rows, shown, times, is_drawn, epochs))
        return self._leaves[-1]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Rows in an order of their own; a sample is a row, or a row at one of its ``times`` levels."""

    rows: _Rows
    levels: tuple[PromptLevel, ...]
    times: int
    is_drawn: bool
    epochs: PlainEpochs | BucketEpochs

    @property
    def num_samples(self) -> int:
        return len(self.rows) * self.times


@dataclass(frozen=True, slots=True)
class _Branch:
    """Orders that take turns, a micro batch or a sample at a time."""

    turns: Turns
    children: "Sequence[_Leaf | _Branch]"


def _taking_turns(children: "Sequence[_Leaf | _Branch]", weights: Sequence[float]) -> "_Leaf | _Branch":
    return children[0] if len(children) == 1 else _Branch(Turns(weights), children)


def _taken(column: NDArray[_Kind], rows: _Rows) -> NDArray[_Kind]:
    """Returns the values of rows; those of a range are not copied."""
    return column[rows.start : rows.stop] if isinstance(rows, range) else column[rows]
