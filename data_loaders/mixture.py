"""Several data sets as one, each with a share of its own."""

import bisect
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from physedit.data_loaders.sample import EditDataset, EditSample, PromptLevel, RowHeader, RowName, StoredPair
from physedit.data_loaders.slots import Member


class Mixture:
    """An ``EditDataset`` of named members, one after the other; their weights decide how often each is shown.

    The shares hold in the order of a run (data_loaders/slots.py): the members take turns, and each goes through epochs
    of its own. As a set of rows a mixture has every member once.
    """

    def __init__(
        self,
        *,
        members: Mapping[str, EditDataset],
        weights: Mapping[str, float],
        levels: Mapping[str, str] | None = None,
    ) -> None:
        """Joins the members.

        Args:
            members: by name; the name stands before the ids of a member's samples.
            weights: one for each member, above 0; only their ratios count.
            levels: for some members, the level of their instructions whatever the run's ``levels`` say.

        Raises:
            ValueError: no members, or a weight or level that belongs to none, is missing or cannot be used.
        """
        fixed = levels or {}
        _check_names(members, weights, fixed)
        self._sets = list(members.values())
        self._ends = list(itertools.accumulate(len(dataset) for dataset in self._sets))
        self.members = tuple(
            Member(name, end - len(dataset), len(dataset), _weight(name, weights[name]), _level(name, dataset, fixed))
            for (name, dataset), end in zip(members.items(), self._ends, strict=True)
        )

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The levels that every member without a level of its own has."""
        free = [dataset.levels for dataset, member in self._pairs() if member.level is None]
        return frozenset(PromptLevel).intersection(*free)

    @property
    def max_references(self) -> int:
        """The most of any member."""
        return max(dataset.max_references for dataset in self._sets)

    @property
    def fingerprint(self) -> str:
        """Names the members and their fingerprints. Weights are not in it: they change no row."""
        parts = [f"{member.name}/{member.level}/{dataset.fingerprint}" for dataset, member in self._pairs()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Those of the members, by name."""
        return {member.name: dataset.fingerprint for dataset, member in self._pairs()}

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int) -> RowName:
        """Returns the member's name of the row, with the member's own name before it."""
        member, row = self._locate(index)
        inner = self._sets[member].name(row)
        return RowName(self._prefixed(member, inner.sample_id), inner.origin)

    def header(self, index: int) -> RowHeader:
        """Returns the member's header of the row."""
        member, row = self._locate(index)
        return self._sets[member].header(row)

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        """Returns the member's stored pair.

        Raises:
            DatasetRowError: a picture or the instruction is missing.
        """
        member, row = self._locate(index)
        pair = self._sets[member].stored(row, self.members[member].level or level)
        return replace(pair, sample_id=self._prefixed(member, pair.sample_id))

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns the member's sample, at the member's own level if it has one.

        Raises:
            DatasetRowError: the row cannot be decoded.
        """
        member, row = self._locate(index)
        sample = self._sets[member].sample(row, self.members[member].level or level)
        return replace(sample, sample_id=self._prefixed(member, sample.sample_id))

    def _pairs(self) -> Sequence[tuple[EditDataset, Member]]:
        return list(zip(self._sets, self.members, strict=True))

    def _prefixed(self, member: int, sample_id: str) -> str:
        return f"{self.members[member].name}/{sample_id}"

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"Row {index} was asked for, but the mixture has {len(self)} rows.")
        member = bisect.bisect_right(self._ends, index)
        return member, index - self.members[member].first


def members_of(dataset: EditDataset) -> tuple[Member, ...]:
    """Returns the members of a mixture; any other data set is its own only member."""
    return dataset.members if isinstance(dataset, Mixture) else (Member("", 0, len(dataset), 1.0, None),)


def _check_names(members: Mapping[str, EditDataset], weights: Mapping[str, float], levels: Mapping[str, str]) -> None:
    if not members:
        raise ValueError(
            "A mixture has no members. Add some, for example +data@data.members.pica=pica100k, each with a weight, "
            "for example '+data.weights.pica=0.7'."
        )
    for what, names in (("weights", weights), ("levels", levels)):
        for name in names:
            if name not in members:
                near = get_close_matches(name, members, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise ValueError(f"{what}.{name} is of no member.{hint} Members: {', '.join(members)}.")
    lacking = [name for name in members if name not in weights]
    if lacking:
        raise ValueError(f"No weight for {', '.join(lacking)}. Give each member one, such as weights.{lacking[0]}=1.0.")


def _weight(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"weights.{name}={weight} is no number. Give each member one above 0, such as 0.7.")
    if not 0 < weight < math.inf:
        raise ValueError(f"weights.{name}={weight} shows no row of it. Give each member a weight above 0, such as 0.7.")
    return float(weight)


def _level(name: str, dataset: EditDataset, levels: Mapping[str, str]) -> PromptLevel | None:
    asked = levels.get(name)
    if asked is None:
        return None
    if asked not in {str(level) for level in dataset.levels}:
        raise ValueError(f"levels.{name}={asked} is not a level that {name} has: {', '.join(sorted(dataset.levels))}.")
    return PromptLevel(asked)
