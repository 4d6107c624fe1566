"""A data set of plain colours that needs no files: sizes, laws and faults of each row as a test wants them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from physedit.data_loaders.buckets import find_buckets
from physedit.data_loaders.mixture import members_of
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import (
    DatasetRowError,
    EditDataset,
    EditSample,
    Origin,
    PromptLevel,
    RowHeader,
    RowName,
    StoredPair,
)
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import LevelMix, RunPlan

SUPERFICIAL = LevelMix({PromptLevel.SUPERFICIAL: 1.0})


@dataclass
class PlainPairs:
    """An ``EditDataset``: the source of row i is all i, its target i + 100, and its instruction ends with i.

    ``broken`` rows raise when decoded and look well in their header; ``problems`` are in the header. ``decoded`` lists
    the rows that this process decoded, ``looked_at`` those whose header it read.
    """

    num_rows: int = 9
    sizes: Sequence[tuple[int, int]] = ((2, 2),)
    target_sizes: Sequence[tuple[int, int]] | None = None
    laws: Sequence[str | None] = (None,)
    broken: frozenset[int] = frozenset()
    problems: Mapping[int, str] = field(default_factory=dict)
    levels: frozenset[PromptLevel] = frozenset(PromptLevel)
    max_references: int = 0
    title: str = "plain"
    decoded: list[int] = field(default_factory=list)
    looked_at: list[int] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        return f"{self.title}/{self.num_rows}/{self.sizes}/{self.laws}/{dict(self.problems)}"

    def __len__(self) -> int:
        return self.num_rows

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index % len(self.sizes)]

    def target_size(self, index: int) -> tuple[int, int]:
        sizes = self.target_sizes or self.sizes
        return sizes[index % len(sizes)]

    def name(self, index: int) -> RowName:
        return RowName(f"{self.title}:{index}", Origin(f"{self.title}.parquet", index))

    def header(self, index: int) -> RowHeader:
        self.looked_at.append(index)
        problem = self.problems.get(index)
        if problem is not None:
            return RowHeader(None, None, self.laws[index % len(self.laws)], None, problem)
        return RowHeader(self.size(index), self.target_size(index), self.laws[index % len(self.laws)], None, None)

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        raise DatasetRowError(f"{self.name(index).origin} has no files")

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        self.decoded.append(index)
        name = self.name(index)
        if index in self.broken or index in self.problems:
            raise DatasetRowError(f"The picture in {name.origin} cannot be decoded", reason=RowProblem.DAMAGED)
        return EditSample(
            sample_id=name.sample_id,
            source=torch.full((3, *self.size(index)), index % 100, dtype=torch.uint8),
            target=torch.full((3, *self.target_size(index)), index % 100 + 100, dtype=torch.uint8),
            instruction=f"{level} {index}",
            law=self.laws[index % len(self.laws)],
            operation=None,
            level=level,
            origin=name.origin,
        )


def plan_of(
    dataset: EditDataset,
    folder: Path,
    *,
    micro_batch: int = 1,
    levels: LevelMix = SUPERFICIAL,
    seed: int = 4,
    balance: str = "none",
    multiple_px: int = 1,
) -> RunPlan:
    """Returns the plan of a run over ``dataset``; sizes rounded down to ``multiple_px`` are its buckets."""
    index = SizeIndex.of(dataset, folder, num_workers=0)
    buckets = find_buckets(index.rows["source"], lambda h, w: (h // multiple_px, w // multiple_px))
    return RunPlan(
        index,
        buckets,
        members_of(dataset),
        seed=seed,
        levels=levels,
        micro_batch=micro_batch,
        balance=balance,  # type: ignore[arg-type]
    )
