"""Batches of a run in global order, dealt over ranks.

Shape legend: B batch, H W pixels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from physedit.data_loaders.order import level_at, sample_index
from physedit.data_loaders.sample import DatasetRowError, EditBatch, EditDataset, EditSample, PromptLevel, collate
from physedit.data_loaders.workers import end_with_parent_alone


@dataclass(frozen=True, slots=True)
class PositionedBatch:
    """A batch and the global position in the run of each of its samples."""

    positions: tuple[int, ...]
    batch: EditBatch


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

    A row that cannot be decoded stops the run with its file and row. Iterating anew starts again at
    ``start_position``; positions before it are never decoded.
    """

    def __init__(
        self,
        dataset: EditDataset,
        *,
        seed: int,
        level_weights: Mapping[PromptLevel, float],
        share: Share,
        start_position: int = 0,
        stop_position: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Plans the batches; nothing is decoded yet.

        Args:
            dataset: pure and picklable, since worker processes hold copies.
            seed: with the global position it decides row and prompt level.
            level_weights: prompt levels are drawn in proportion; only levels that the data set has.
            share: this rank's part.
            start_position: samples that the run has consumed over all ranks.
            stop_position: the run's total of samples over all ranks, beyond which none is decoded; or None.
            num_workers: processes that decode ahead; 0 decodes in this process.

        Raises:
            ValueError: an empty data set, weights that cannot be drawn from, a level the data set lacks,
                positions that are negative or no whole number of optimizer steps apart.
        """
        _check_levels(dataset, level_weights)
        _check_positions(start_position, stop_position, share)
        self._plan = _Plan(dataset, seed, dict(level_weights))
        self._plan.sample_plan(start_position)
        self._share = share
        self._start = start_position
        self._stop = stop_position
        self._num_workers = num_workers

    def __iter__(self) -> Iterator[PositionedBatch]:
        loader = DataLoader(
            self._plan,
            batch_sampler=_PositionSampler(self._share, self._start, self._stop),
            num_workers=self._num_workers,
            collate_fn=_positioned,
            worker_init_fn=end_with_parent_alone() if self._num_workers else None,
            # One of its own: the loader draws a seed for its workers, by default from the global generator.
            generator=torch.Generator().manual_seed(0),
        )
        for batch in loader:
            if isinstance(batch, DatasetRowError):
                raise batch
            yield batch


# An error travels as a value: one that a worker raises reaches the parent wrapped in the text of its traceback.
_Item = tuple[int, EditSample | DatasetRowError]


class _Plan(Dataset[_Item]):
    """Maps a global position to its sample: all that a worker needs to know."""

    def __init__(self, dataset: EditDataset, seed: int, level_weights: dict[PromptLevel, float]) -> None:
        self._dataset = dataset
        self._seed = seed
        self._level_weights = level_weights

    def sample_plan(self, position: int) -> tuple[int, PromptLevel]:
        """Returns row and prompt level at ``position`` without decoding."""
        row = sample_index(position, len(self._dataset), self._seed)
        return row, level_at(position, self._level_weights, self._seed)

    def __getitem__(self, position: int) -> _Item:
        row, level = self.sample_plan(position)
        try:
            return position, self._dataset.sample(row, level)
        except DatasetRowError as error:
            return position, error


class _PositionSampler(Sampler[list[int]]):
    def __init__(self, share: Share, start: int, stop: int | None) -> None:
        self._share = share
        self._start = start
        self._stop = stop

    def __iter__(self) -> Iterator[list[int]]:
        return (list(positions) for positions in self._share.positions(self._start, self._stop))


def _positioned(items: list[_Item]) -> PositionedBatch | DatasetRowError:
    samples: list[EditSample] = []
    for _, sample in items:
        if isinstance(sample, DatasetRowError):
            return sample
        samples.append(sample)
    try:
        return PositionedBatch(tuple(position for position, _ in items), collate(samples))
    except DatasetRowError as error:
        return error


def _check_levels(dataset: EditDataset, level_weights: Mapping[PromptLevel, float]) -> None:
    lacking = sorted(level for level, weight in level_weights.items() if weight and level not in dataset.levels)
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
