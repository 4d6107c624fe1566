"""Edit pairs that lie in memory: grey pictures, some of which cannot be used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from physedit.data_loaders.sample import (
    DatasetRowError,
    EditSample,
    Origin,
    PromptLevel,
    RowHeader,
    RowName,
    StoredPair,
)

SIDE = 16


@dataclass(frozen=True)
class MemoryPairs:
    """``num_rows`` pairs of two laws; those in ``broken`` cannot be decoded, those in ``lost`` have no picture."""

    num_rows: int = 8
    broken: Collection[int] = ()
    lost: Collection[int] = ()
    levels: frozenset[PromptLevel] = field(default_factory=lambda: frozenset({PromptLevel.SUPERFICIAL}))
    max_references: int = 0
    fingerprint: str = "memory"

    def __len__(self) -> int:
        return self.num_rows

    def name(self, index: int) -> RowName:
        return RowName(f"pair-{index}", Origin("memory", index))

    def header(self, index: int) -> RowHeader:
        size = (SIDE, SIDE)
        return RowHeader(size, size, self._law(index), None, "no target picture" if index in self.lost else None)

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        raise DatasetRowError(f"row {index} lies in memory")

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        if index in (*self.broken, *self.lost):
            raise DatasetRowError(f"row {index} cannot be decoded", reason="undecodable")
        source = torch.full((3, SIDE, SIDE), 40 + index, dtype=torch.uint8)
        target = source.clone()
        target[:, 4:8, 4:8] = 200
        return EditSample(
            f"pair-{index}", source, target, f"Paint {index}", self._law(index), None, level, Origin("memory", index)
        )

    def _law(self, index: int) -> str:
        return ("Reflection", "Causality")[index % 2]
