"""The edit pair and the batch of edit pairs: what every data set yields.

Shape legend: B batch, H W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor


class PromptLevel(StrEnum):
    """How much of the physics an instruction spells out (PICABench's three prompt columns)."""

    SUPERFICIAL = "superficial"
    INTERMEDIATE = "intermediate"
    EXPLICIT = "explicit"


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-aligned rectangle: left, top, width and height, in the frame its owner states."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sample was read from, for error messages."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}"


@dataclass(frozen=True, slots=True)
class EditSample:
    """One edit pair.

    ``source`` and ``target`` are uint8 RGB ``[3, H, W]`` of equal size, ``sample_id`` is stable across
    runs and unique within its data set; ``law`` and ``operation`` are None where the data has no such label.
    """

    sample_id: str
    source: Tensor
    target: Tensor
    instruction: str
    law: str | None
    operation: str | None
    level: PromptLevel
    origin: Origin


@dataclass(frozen=True, slots=True)
class EditBatch:
    """Edit pairs of one size: ``source`` and ``target`` are uint8 ``[B, 3, H, W]``."""

    sample_ids: tuple[str, ...]
    source: Tensor
    target: Tensor
    instructions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sample_ids)


class EditDataset(Protocol):
    """A map-style set of edit pairs: pure (same arguments, same sample) and picklable."""

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The prompt levels every row has."""
        ...

    def __len__(self) -> int: ...

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns row ``index`` with the instruction of ``level``.

        Raises:
            DatasetRowError: the row cannot be decoded; the message names file and row.
        """
        ...


class DatasetLayoutError(ValueError):
    """The files of a data set are not where, or not what, the loader expects."""


class DatasetRowError(ValueError):
    """One row of a data set cannot be used."""


class PictureSizeError(ValueError):
    """The pictures have a size that the editor does not take."""


def collate(samples: Sequence[EditSample]) -> EditBatch:
    """Stacks edit pairs of equal size.

    Raises:
        DatasetRowError: the pictures differ in size; the message names the two rows.
    """
    first = samples[0]
    for sample in samples:
        if sample.source.shape != first.source.shape or sample.target.shape != first.target.shape:
            raise DatasetRowError(
                f"A batch needs pictures of one size, but {first.origin} is {_size(first)} "
                f"and {sample.origin} is {_size(sample)}. Set data.resolution to bring all to one size."
            )
    return EditBatch(
        sample_ids=tuple(s.sample_id for s in samples),
        source=torch.stack([s.source for s in samples]),
        target=torch.stack([s.target for s in samples]),
        instructions=tuple(s.instruction for s in samples),
    )


def _size(sample: EditSample) -> str:
    height, width = sample.source.shape[-2:]
    return f"{width}x{height}"
