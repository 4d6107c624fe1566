"""The edit pair and the batch of edit pairs: what every data set yields.

Shape legend: B batch, H W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

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

    ``source``, ``target`` and ``references`` are uint8 RGB ``[3, H, W]`` as stored, each of its own size;
    ``references`` are further pictures that the instruction may speak of. ``sample_id`` is stable across
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
    references: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class EditBatch:
    """Edit pairs as stored, B of each: a backbone brings their pictures to its own sizes.

    Attributes:
        sample_ids: name the pairs, for error messages.
        sources: uint8 ``[3, H, W]``, each of its own size.
        targets: uint8 ``[3, H, W]``.
        instructions: one a pair.
        references: further pictures of each pair, the same number for all; empty if no pair has any.
        weights: of each pair in the loss: 1.0, or 0.0 for a stand-in where there is no pair; all 1.0 if not given.
    """

    sample_ids: tuple[str, ...]
    sources: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    instructions: tuple[str, ...]
    references: tuple[tuple[Tensor, ...], ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", (1.0,) * len(self.sample_ids))

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def given(self) -> tuple[tuple[Tensor, ...], ...]:
        """All pictures that each pair's edit starts from: its source, then its references."""
        extra = self.references or ((),) * len(self)
        return tuple((source, *more) for source, more in zip(self.sources, extra, strict=True))

    @property
    def num_targets_of_other_size(self) -> int:
        """How many targets are not of their source's size; stand-ins do not count."""
        pairs = zip(self.sources, self.targets, self.weights, strict=True)
        return sum(weight > 0 and source.shape != target.shape for source, target, weight in pairs)


@dataclass(frozen=True, slots=True)
class RowHeader:
    """What a row tells before any picture is decoded.

    Attributes:
        source: height and width of the source as it is shown (EXIF orientation applied), None if it has a problem.
        target: height and width of the target, likewise.
        law: label, or None.
        operation: label, or None.
        problem: why the row cannot be used, None if nothing is known against it; the reason alone, such as ``no target
            picture``, so that rows can be counted by it.
        references: height and width of each further picture, likewise; empty if it has a problem.
    """

    source: tuple[int, int] | None
    target: tuple[int, int] | None
    law: str | None
    operation: str | None
    problem: str | None
    references: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RowName:
    """What a row is called: ``sample_id`` is that of its sample."""

    sample_id: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that cannot be used: ``reason`` is short, to count by; ``message`` says more where more is known."""

    index: int
    name: RowName
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StoredPair:
    """One edit pair as its files hold it: encoded pictures, and the instruction of one level."""

    sample_id: str
    source: bytes
    target: bytes
    references: tuple[bytes, ...]
    instruction: str
    law: str | None
    operation: str | None
    level: PromptLevel
    origin: Origin


class EditDataset(Protocol):
    """A map-style set of edit pairs: pure (same arguments, same sample) and picklable."""

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The prompt levels every row has."""
        ...

    @property
    def max_references(self) -> int:
        """How many pictures beside the source a row may have."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the set's files and settings: another order of rows, filter or file gives another name.

        It is made without reading pictures, from file names, sizes and times.
        """
        ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> RowName:
        """Returns what row ``index`` is called; a row that cannot be used has a name too."""
        ...

    def header(self, index: int) -> RowHeader:
        """Returns what row ``index`` tells without decoding; a row that cannot be used says why and does not raise."""
        ...

    def stored(self, index: int, level: PromptLevel) -> StoredPair:
        """Returns row ``index`` undecoded, with the instruction of ``level``.

        Raises:
            DatasetRowError: a picture or the instruction is missing.
        """
        ...

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns row ``index`` with the instruction of ``level``.

        Raises:
            DatasetRowError: the row cannot be decoded; the message names file and row.
        """
        ...


class DatasetLayoutError(ValueError):
    """The files of a data set are not where, or not what, the loader expects."""


class DatasetRowError(ValueError):
    """One row of a data set cannot be used.

    Attributes:
        reason: the reason alone, a value of ``RowProblem`` where a data set raised it, so that rows can be counted.
    """

    def __init__(self, message: str, *, reason: str = "unusable row") -> None:
        super().__init__(message)
        self.reason = reason


class PictureSizeError(ValueError):
    """The pictures have a size that the editor does not take."""


def collate(samples: Sequence[EditSample], weights: Sequence[float] = ()) -> EditBatch:
    """Joins edit pairs into a batch; see ``EditBatch.weights``.

    Raises:
        DatasetRowError: the pairs have unlike numbers of references; the message names two rows.
    """
    first = samples[0]
    for sample in samples:
        if len(sample.references) != len(first.references):
            raise DatasetRowError(
                f"A batch needs pairs with equally many references, but {first.origin} has {len(first.references)} "
                f"and {sample.origin} has {len(sample.references)}. Set micro_batch=1."
            )
    return EditBatch(
        sample_ids=tuple(s.sample_id for s in samples),
        sources=tuple(s.source for s in samples),
        targets=tuple(s.target for s in samples),
        instructions=tuple(s.instruction for s in samples),
        references=tuple(s.references for s in samples) if first.references else (),
        weights=tuple(weights),
    )
