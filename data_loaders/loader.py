"""Batches of a run in global order, dealt over ranks.

Shape legend: B batch, H W pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from physedit.data_loaders.encoded import EncodedBatch, EncodedRows, called
from physedit.data_loaders.images import decoded_at
from physedit.data_loaders.sample import (
    DatasetRowError,
    DroppedRow,
    EditBatch,
    EditDataset,
    EditSample,
    Origin,
    RowName,
    collate,
)
from physedit.data_loaders.slabs import Filled, Slabs, slabs_for
from physedit.data_loaders.slots import RunPlan, Slot
from physedit.data_loaders.workers import end_with_parent_alone

CHANGED = "changed since the size index was made"
_AHEAD = 2
"""Micro batches that each worker reads ahead."""


@dataclass(frozen=True, slots=True)
class PositionedBatch:
    """A batch and the global position in the run of each of its samples.

    A position without a sample, and one whose row cannot be used, hold a stand-in of weight 0.
    """

    positions: tuple[int, ...]
    batch: EditBatch | EncodedBatch
    dropped: tuple[DroppedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part of every global batch.

    The global batch of an optimizer step is ``micro_batch * accumulation * world`` consecutive positions.
    Micro step ``a`` of rank ``r`` takes the slice of ``micro_batch`` positions that starts at
    ``(a * world + r) * micro_batch`` within it, so any split with the same product trains on the same samples
    in each optimizer step.
    """

    micro_batch: int
    accumulation: int = 1
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if min(self.micro_batch, self.accumulation, self.world) < 1 or not 0 <= self.rank < self.world:
            raise ValueError(
                f"Batches cannot be dealt with {self}: micro_batch, accumulation and world must be at least "
                "1, and rank must lie in 0..world-1."
            )

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.micro_batch * self.accumulation * self.world

    def positions(self, start: int, stop: int | None) -> Iterator[tuple[int, ...]]:
        """Yields the positions of each micro batch from ``start`` until ``stop``, or without end."""
        first = start + self.rank * self.micro_batch
        stride = self.world * self.micro_batch
        last = first if stop is None else stop - (stride - self.rank * self.micro_batch)
        while stop is None or first <= last:
            yield tuple(range(first, first + self.micro_batch))
            first += stride


class TrainingBatches:
    """Iterates over one rank's micro batches: ``accumulation`` of them make its part of an optimizer step.

    A row that cannot be used is named in its batch, and nothing is learnt from it. Iterating anew starts again at
    ``start_position``; positions before it are never decoded.
    """

    def __init__(
        self,
        dataset: EditDataset,
        plan: RunPlan,
        *,
        share: Share,
        start_position: int = 0,
        stop_position: int | None = None,
        num_workers: int = 0,
        encoded: EncodedRows | None = None,
    ) -> None:
        """Prepares the batches; nothing is decoded yet.

        Args:
            dataset: pure and picklable, since worker processes hold copies.
            plan: of the run over ``dataset``.
            share: this rank's part.
            start_position: slots that the run has consumed over all ranks.
            stop_position: the run's total of slots over all ranks, beyond which none is decoded; or None.
            num_workers: processes that decode ahead; 0 decodes in this process.
            encoded: reads the pairs from an encoded store; None decodes their pictures.

        Raises:
            ValueError: a level the data set lacks, a plan for another micro batch, positions that are negative or no
                whole number of optimizer steps apart.
        """
        _check_levels(dataset, plan)
        _check_positions(start_position, stop_position, share)
        if plan.unit not in (1, share.micro_batch):
            raise ValueError(f"The plan of the run is for micro batches of {plan.unit}, not of {share.micro_batch}.")
        self._plan = plan
        self._reader = _Reader(plan, _Decoder(dataset, plan) if encoded is None else encoded)
        self._share = share
        self._start = start_position
        self._stop = stop_position
        self._num_workers = num_workers

    def __iter__(self) -> Iterator[PositionedBatch]:
        self._plan.at(self._start)  # forked workers find the epoch in memory instead of each making its own
        # One slab for each micro batch read ahead, one for that in use, and one for that in the making.
        num_bytes = self._share.micro_batch * self._plan.large_pair_bytes
        slabs = slabs_for(self._num_workers, _AHEAD + 2, num_bytes) if self._reader.decodes else None
        loader = DataLoader(
            _Sender(self._reader, slabs),
            sampler=_MicroBatches(self._share, self._start, self._stop),
            batch_size=None,
            num_workers=self._num_workers,
            prefetch_factor=_AHEAD if self._num_workers else None,
            worker_init_fn=end_with_parent_alone() if self._num_workers else None,
            # One of its own: the loader draws a seed for its workers, by default from the global generator.
            generator=torch.Generator().manual_seed(0),
        )
        for batch in loader:
            if isinstance(batch, DatasetRowError):
                raise batch
            yield batch.unpacked(slabs) if isinstance(batch, _Packed) else batch


# An error travels as a value: one that a worker raises reaches the parent wrapped in the text of its traceback.
_Read = PositionedBatch | DatasetRowError


@dataclass(frozen=True, slots=True)
class _Packed:
    """A batch whose pictures are in a slab: sources, targets, then the references of one pair after the other."""

    positioned: PositionedBatch
    filled: Filled

    def unpacked(self, slabs: Slabs | None) -> PositionedBatch:
        assert slabs is not None
        assert isinstance(self.positioned.batch, EditBatch)
        size, pictures = len(self.positioned.batch), slabs.pictures(self.filled)
        each = len(pictures) // size - 2
        references = [tuple(pictures[first : first + each]) for first in range(2 * size, len(pictures), each or 1)]
        batch = replace(
            self.positioned.batch,
            sources=tuple(pictures[:size]),
            targets=tuple(pictures[size : 2 * size]),
            references=tuple(references),
        )
        return replace(self.positioned, batch=batch)


class _Sender(Dataset["_Read | _Packed"]):
    """Reads micro batches; a worker sends their pictures in a slab if there is one free."""

    def __init__(self, reader: "_Reader", slabs: Slabs | None) -> None:
        self._reader = reader
        self._slabs = slabs

    def __getitem__(self, positions: tuple[int, ...]) -> "_Read | _Packed":
        worker = get_worker_info()
        slab = None if worker is None or self._slabs is None else self._slabs.opened(worker.id)
        if slab is None:
            return self._reader[positions]
        with decoded_at(slab.place):
            read = self._reader[positions]
        if isinstance(read, DatasetRowError) or not isinstance(read.batch, EditBatch):
            return read
        batch = read.batch
        further = [picture for pair in batch.references for picture in pair]
        filled = slab.filled([*batch.sources, *batch.targets, *further])
        if filled is None:
            return replace(read, batch=_copied(batch))
        return _Packed(replace(read, batch=replace(batch, sources=(), targets=(), references=())), filled)


def _copied(batch: EditBatch) -> EditBatch:
    """Returns the batch with pictures of their own memory."""
    return replace(
        batch,
        sources=tuple(picture.clone() for picture in batch.sources),
        targets=tuple(picture.clone() for picture in batch.targets),
        references=tuple(tuple(picture.clone() for picture in pair) for pair in batch.references),
    )


class _Reader:
    """Maps the positions of a micro batch to it: all that a worker needs to know."""

    def __init__(self, plan: RunPlan, rows: "_Decoder | EncodedRows") -> None:
        self._plan = plan
        self._rows = rows

    @property
    def decodes(self) -> bool:
        """True if batches hold pictures."""
        return isinstance(self._rows, _Decoder)

    def __getitem__(self, positions: tuple[int, ...]) -> _Read:
        try:
            batch, dropped = self._rows.read([self._plan.at(position) for position in positions])
        except DatasetRowError as error:
            return error
        return PositionedBatch(positions, batch, dropped)


class _Decoder:
    """Reads micro batches by decoding their pictures."""

    def __init__(self, dataset: EditDataset, plan: RunPlan) -> None:
        self._dataset = dataset
        self._plan = plan

    def read(self, slots: Sequence[Slot]) -> tuple[EditBatch, tuple[DroppedRow, ...]]:
        found = [None if slot.row is None else self._read(slot.row, slot) for slot in slots]
        samples = [each for each in found if isinstance(each, EditSample)]
        stand_in = samples[0] if samples else self._blank(slots)
        filled = [each if isinstance(each, EditSample) else replace(stand_in, sample_id=called(each)) for each in found]
        batch = collate(filled, [float(isinstance(each, EditSample)) for each in found])
        return batch, tuple(each for each in found if isinstance(each, DroppedRow))

    def _read(self, row: int, slot: Slot) -> EditSample | DroppedRow:
        try:
            sample = self._dataset.sample(row, slot.level)
        except DatasetRowError as error:
            return DroppedRow(row, self._dataset.name(row), error.reason, str(error))
        index = self._plan.index
        found = (_size(sample.source), _size(sample.target))
        if found != (index.source(row), index.target(row)):
            message = f"{sample.origin} is not the size that the size index says. It was written after the index."
            return DroppedRow(row, RowName(sample.sample_id, sample.origin), CHANGED, message)
        return sample

    def _blank(self, slots: Sequence[Slot]) -> EditSample:
        """Returns a black pair of the sizes that the micro batch has, so that what is computed of it fits."""
        slot = next(slot for slot in slots if slot.row is not None)  # no micro batch is all empty
        assert slot.row is not None
        source, target = (
            torch.zeros(3, *size, dtype=torch.uint8)
            for size in (self._plan.index.source(slot.row), self._plan.index.target(slot.row))
        )
        return EditSample("", source, target, "", None, None, slot.level, Origin("", 0))


def _size(picture: torch.Tensor) -> tuple[int, int]:
    height, width = picture.shape[-2:]
    return height, width


class _MicroBatches(Sampler[tuple[int, ...]]):
    def __init__(self, share: Share, start: int, stop: int | None) -> None:
        self._share = share
        self._start = start
        self._stop = stop

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return self._share.positions(self._start, self._stop)


def _check_levels(dataset: EditDataset, plan: RunPlan) -> None:
    lacking = sorted(level for level in plan.levels.shown if level not in dataset.levels)
    if lacking:
        raise ValueError(
            f"The prompt levels {', '.join(lacking)} have a weight, but the data set has only "
            f"{', '.join(sorted(dataset.levels))}. Set the weight of the others to 0."
        )


def _check_positions(start: int, stop: int | None, share: Share) -> None:
    if start < 0 or (stop is not None and (stop < start or (stop - start) % share.global_batch)):
        raise ValueError(
            f"Positions {start} to {stop} are no whole number of optimizer steps of {share.global_batch} "
            f"samples ({share}). Make both multiples of the global batch."
        )
