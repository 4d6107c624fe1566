"""What training would make of every row of a data set, found by decoding it: dropped and why, and what else is odd.

Shape legend: H W pixels.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from physedit.data_loaders.accepted import refuse_texts
from physedit.data_loaders.buckets import SizeRule
from physedit.data_loaders.geometry import has_aspect_of
from physedit.data_loaders.loader import CHANGED
from physedit.data_loaders.marks import KnownPictures, Match, pixel_digest
from physedit.data_loaders.sample import (
    DatasetRowError,
    DroppedRow,
    EditDataset,
    EditSample,
    PictureSizeError,
    PromptLevel,
    RowHeader,
)
from physedit.data_loaders.slots import UNFIT_SIZE
from physedit.data_loaders.text_limits import Overlong, TextLimit, TextRule
from physedit.data_loaders.workers import end_with_parent_alone

AreaRule = Callable[[Hashable], int]
"""From what a size rule gives to the number of pixels that a source is worked at."""

_CHUNK_ROWS = 8
_TINY_SHARE = 0.25
"""A source with less than this share of the pixels that it is worked at is tiny. Ours: it is enlarged twice a side."""


class NoteKind(StrEnum):
    """What is odd about a row that can be used. The values stay stable: reports and other programs read them."""

    IDENTICAL = "identical source and target"
    SCALED = "target of another size"
    CROPPED = "target of another aspect, which is cropped"
    TINY = "tiny source"
    DUPLICATE = "same source, target and instruction as a row before"
    OVERLONG = "overlong instruction"
    BENCHMARK_COPY = "copy of a benchmark picture"
    BENCHMARK_NEAR = "near-copy of a benchmark picture"


@dataclass(frozen=True, slots=True)
class Note:
    """Something odd about a row: ``text`` says more; ``known`` is the benchmark picture that it repeats."""

    kind: NoteKind
    text: str
    known: Match | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a row: its level, and its tokens by each counting ``TextLimit``, in their order."""

    level: PromptLevel
    num_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowReport:
    """What was found of a row.

    Attributes:
        index: of the row.
        sample_id, file, row: what it is called, and where it was read from.
        dropped: why training would drop it; None if it would not.
        stops: a fault of the reader that training would end at; empty if there is none.
        law, operation: its labels; None where it has none.
        source, target: height and width; None of a dropped row.
        bucket: what the size rule gives for the source; None of a dropped row.
        instructions: of a row that can be decoded, at each level.
        notes: what else is odd.
        key: names source, target and instructions by their content, 64 bits; 0 of a dropped row.
    """

    index: int
    sample_id: str
    file: str
    row: int
    law: str | None
    operation: str | None
    dropped: DroppedRow | None = None
    stops: str = ""
    source: tuple[int, int] | None = None
    target: tuple[int, int] | None = None
    bucket: Hashable = None
    instructions: tuple[Instruction, ...] = ()
    notes: tuple[Note, ...] = ()
    key: int = 0


class Audit:
    """Looks at rows. Picklable: worker processes hold copies."""

    def __init__(
        self,
        dataset: EditDataset,
        sizes_of: SizeRule,
        *,
        area_of: AreaRule,
        limits: Sequence[TextLimit] = (),
        text_rule: TextRule | None = None,
        known: KnownPictures | None = None,
    ) -> None:
        """Prepares the audit; nothing is read.

        Args:
            dataset: its rows are looked at.
            sizes_of: the editor's size rule.
            area_of: tells how many pixels a source has where ``sizes_of`` brings it.
            limits: of instructions; those that cannot count are passed over.
            text_rule: the editor's; None if it takes every instruction.
            known: pictures that should not be among the rows.

        Raises:
            ValueError: the rows have no level in common.
        """
        if not dataset.levels:
            raise ValueError("The rows have no prompt level in common. Give members of a mixture levels of their own.")
        self._dataset = dataset
        self._levels = sorted(dataset.levels, key=list(PromptLevel).index)
        self._sizes_of = sizes_of
        self._area_of = area_of
        self._limits = [limit for limit in limits if limit.count is not None]
        self._text_rule = text_rule
        self._known = known

    def look_at(self, index: int) -> RowReport:
        """Returns what is found of row ``index``; whatever is wrong with it, nothing is raised."""
        name = self._dataset.name(index)
        where = (index, name.sample_id, name.origin.file, name.origin.row)
        header = RowHeader(None, None, None, None, None)
        texts: Mapping[PromptLevel, str] = {}
        try:
            header = self._dataset.header(index)
            sample, bucket = self._usable(index, header)
            texts = self._texts(index, sample)
            self._refuse_texts(sample, texts)
            instructions = self._counted(texts)
        except MemoryError:
            raise
        except DatasetRowError as error:
            dropped = DroppedRow(index, name, error.reason, str(error))
            counted = self._counted(texts)
            return RowReport(*where, header.law, header.operation, dropped=dropped, instructions=counted)
        # What ends a run must not end the search for it.
        except Exception as error:
            return RowReport(*where, header.law, header.operation, stops=f"{type(error).__name__}: {error}")
        digests = pixel_digest(sample.source), pixel_digest(sample.target)
        overlong = list(self._overlong(instructions))
        long_notes = [Note(NoteKind.OVERLONG, "; ".join(overlong))] if overlong else []
        return RowReport(
            *where,
            sample.law,
            sample.operation,
            source=_size(sample.source),
            target=_size(sample.target),
            bucket=bucket,
            instructions=instructions,
            notes=(*self._picture_notes(sample, digests, bucket), *long_notes),
            key=_key(*digests, *(text.encode() for text in texts.values())),
        )

    def _usable(self, index: int, header: RowHeader) -> tuple[EditSample, Hashable]:
        """Returns the sample and its bucket, or raises what a run would drop the row for, in a run's order."""
        bucket: Hashable = None
        if header.problem is None and header.source is not None:
            try:
                bucket, *_ = [self._sizes_of(*size) for size in (header.source, *header.references)]
            except PictureSizeError as error:
                raise DatasetRowError(str(error), reason=UNFIT_SIZE) from error
        try:
            sample = self._dataset.sample(index, self._levels[0])
        except DatasetRowError as error:
            raise DatasetRowError(str(error), reason=header.problem or error.reason) from error
        if header.problem is not None:
            raise DatasetRowError(header.problem, reason=header.problem)
        found = (_size(sample.source), _size(sample.target), tuple(map(_size, sample.references)))
        if found != (header.source, header.target, header.references):
            raise DatasetRowError(f"{sample.origin} changed while it was read.", reason=CHANGED)
        return sample, bucket

    def _texts(self, index: int, sample: EditSample) -> Mapping[PromptLevel, str]:
        """Returns the instructions of a row, by level."""
        texts = {sample.level: sample.instruction}
        for level in self._levels[1:]:
            pair = self._dataset.stored(index, level)
            texts[pair.level] = pair.instruction
        return texts

    def _refuse_texts(self, sample: EditSample, texts: Mapping[PromptLevel, str]) -> None:
        if self._text_rule is not None:
            sizes = [_size(picture) for picture in (sample.source, *sample.references)]
            refuse_texts(self._text_rule, sample.origin, sizes, texts)

    def _counted(self, texts: Mapping[PromptLevel, str]) -> tuple[Instruction, ...]:
        return tuple(Instruction(level, self._num_tokens(text)) for level, text in texts.items())

    def _num_tokens(self, text: str) -> tuple[int, ...]:
        return tuple(limit.count(text) for limit in self._limits if limit.count is not None)

    def _overlong(self, instructions: Sequence[Instruction]) -> Iterator[str]:
        for instruction in instructions:
            for limit, num_tokens in zip(self._limits, instruction.num_tokens, strict=True):
                if num_tokens > limit.max_tokens and limit.overlong is not Overlong.HARMLESS:
                    what = f"the {instruction.level} instruction has {num_tokens} tokens for {limit.encoder}"
                    yield f"{what}: {limit.why}"

    def _picture_notes(self, sample: EditSample, digests: tuple[bytes, bytes], bucket: Hashable) -> Iterator[Note]:
        source, target = sample.source, sample.target
        if digests[0] == digests[1]:
            yield Note(NoteKind.IDENTICAL, "the pair teaches the editor to change nothing")
        sizes = f"source {_shown(source)}, target {_shown(target)}"
        if source.shape != target.shape:
            yield Note(NoteKind.SCALED if has_aspect_of(target, source) else NoteKind.CROPPED, sizes)
        worked_px = self._area_of(bucket)
        if source.shape[1] * source.shape[2] < _TINY_SHARE * worked_px:
            yield Note(NoteKind.TINY, f"{_shown(source)} is enlarged to {worked_px} pixels")
        if self._known is None:
            return
        for what, picture, digest in (("source", source, digests[0]), ("target", target, digests[1])):
            match = self._known.match(picture, digest)
            if match is not None:
                if match.is_exact:
                    text = f"the {what} is that of item {match.number}"
                    yield Note(NoteKind.BENCHMARK_COPY, text, match)
                else:
                    text = f"the {what} is like that of item {match.number}, {match.num_bits} of 64 bits apart"
                    yield Note(NoteKind.BENCHMARK_NEAR, text, match)


def audited(audit: Audit, indexes: Sequence[int], *, num_workers: int) -> Iterator[RowReport]:
    """Yields a report of each row, in the given order; a few rows are held at a time.

    Args:
        audit: looks at the rows.
        indexes: of the rows.
        num_workers: processes that decode; 0 decodes in this process.
    """
    chunks = DataLoader(
        _Chunks(audit, indexes),
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=end_with_parent_alone() if num_workers else None,
        generator=torch.Generator().manual_seed(0),
    )
    for reports in chunks:
        yield from reports


class _Chunks(Dataset[list[RowReport]]):
    """Rows by the handful, so that a worker sends few objects and no picture."""

    def __init__(self, audit: Audit, indexes: Sequence[int]) -> None:
        self._audit = audit
        self._indexes = indexes

    def __len__(self) -> int:
        return -(-len(self._indexes) // _CHUNK_ROWS)

    def __getitem__(self, chunk: int) -> list[RowReport]:
        first = chunk * _CHUNK_ROWS
        return [self._audit.look_at(int(index)) for index in self._indexes[first : first + _CHUNK_ROWS]]


def _key(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest(), "little")


def _size(picture: Tensor) -> tuple[int, int]:
    return picture.shape[1], picture.shape[2]


def _shown(picture: Tensor) -> str:
    return f"{picture.shape[2]}x{picture.shape[1]}"
