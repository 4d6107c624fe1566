import itertools

import pytest
import torch

from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.sample import DatasetRowError, EditSample, Origin, PromptLevel

LEVELS = {PromptLevel.SUPERFICIAL: 1.0, PromptLevel.EXPLICIT: 1.0}


class Counted:
    """Nine tiny pairs that carry their row in every field, and a list of the rows decoded in this process."""

    levels = frozenset(PromptLevel)

    def __init__(self, broken: int | None = None) -> None:
        self.decoded: list[int] = []
        self.broken = broken

    def __len__(self) -> int:
        return 9

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        self.decoded.append(index)
        if index == self.broken:
            raise DatasetRowError(f"row {index} is broken")
        picture = torch.full((3, 2, 2), index, dtype=torch.uint8)
        return EditSample(
            f"row:{index}", picture, picture + 100, f"{level} {index}", None, None, level, Origin("f", index)
        )


def batches(dataset: Counted, share: Share, **options: int) -> TrainingBatches:
    return TrainingBatches(dataset, seed=4, level_weights=LEVELS, share=share, **options)


def take(dataset: Counted, share: Share, num_steps: int, **options: int) -> list[list[PositionedBatch]]:
    """The micro batches of each optimizer step."""
    stream = iter(batches(dataset, share, **options))
    return [list(itertools.islice(stream, share.accumulation)) for _ in range(num_steps)]


def contents(micro_batches: list[PositionedBatch]) -> list[tuple[int, str, str]]:
    return sorted(
        item
        for micro in micro_batches
        for item in zip(micro.positions, micro.batch.sample_ids, micro.batch.instructions, strict=True)
    )


@pytest.mark.parametrize(("world", "accumulation", "micro_batch"), [(1, 1, 16), (2, 4, 2), (4, 4, 1), (16, 1, 1)])
def test_any_split_of_the_global_batch_trains_on_the_same_samples(
    world: int, accumulation: int, micro_batch: int
) -> None:
    whole = [contents(step) for step in take(Counted(), Share(16), 3)]
    ranks = [take(Counted(), Share(micro_batch, accumulation, rank, world), 3) for rank in range(world)]
    split = [contents([micro for rank in ranks for micro in rank[step]]) for step in range(3)]
    assert split == whole
    assert [position for step in whole for position, _, _ in step] == list(range(48))


def test_picture_instruction_and_id_of_a_sample_stay_together_over_epochs() -> None:
    for step in take(Counted(), Share(2, 1, 1, 2), 20):
        for micro in step:
            for i, sample_id in enumerate(micro.batch.sample_ids):
                row = int(sample_id.removeprefix("row:"))
                assert micro.batch.source[i].unique().tolist() == [row]
                assert micro.batch.target[i].unique().tolist() == [row + 100]
                assert micro.batch.instructions[i].endswith(f" {row}")


def test_start_in_the_middle_equals_the_rest_of_the_run() -> None:
    share = Share(2, 2)
    whole = take(Counted(), share, 6)
    rest = take(Counted(), share, 4, start_position=8)
    assert [contents(step) for step in rest] == [contents(step) for step in whole[2:]]


def test_start_in_the_middle_decodes_nothing_before_it() -> None:
    dataset = Counted()
    next(iter(batches(dataset, Share(2), start_position=1_000_000)))
    assert len(dataset.decoded) == 2


def test_stop_position_ends_the_run_and_nothing_beyond_is_decoded() -> None:
    dataset = Counted()
    for rank in (0, 1):
        positions = [b.positions for b in batches(dataset, Share(2, 2, rank, 2), stop_position=16)]
        assert positions == [(2 * rank + 4 * i, 2 * rank + 4 * i + 1) for i in range(4)]
    assert len(dataset.decoded) == 16


def test_worker_processes_yield_the_same_batches() -> None:
    alone = list(batches(Counted(), Share(3), stop_position=12))
    helped = list(batches(Counted(), Share(3), stop_position=12, num_workers=2))
    assert [contents([b]) for b in helped] == [contents([b]) for b in alone]
    assert all(torch.equal(a.batch.source, b.batch.source) for a, b in zip(alone, helped, strict=True))


def test_reading_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(batches(Counted(), Share(3), stop_position=9))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_broken_row_stops_the_run_with_its_name(num_workers: int) -> None:
    with pytest.raises(DatasetRowError, match="row 3 is broken"):
        list(batches(Counted(broken=3), Share(3), stop_position=9, num_workers=num_workers))


def test_level_that_the_data_lacks_is_refused() -> None:
    dataset = Counted()
    dataset.levels = frozenset({PromptLevel.EXPLICIT})
    with pytest.raises(ValueError, match=r"superficial have a weight.*only explicit"):
        batches(dataset, Share(1))


@pytest.mark.parametrize(("start", "stop"), [(-4, None), (0, 6), (8, 4)])
def test_positions_that_are_no_whole_steps_are_refused(start: int, stop: int | None) -> None:
    with pytest.raises(ValueError, match="no whole number of optimizer steps of 4"):
        batches(Counted(), Share(4), start_position=start, stop_position=stop)


@pytest.mark.parametrize("numbers", [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 2, 2), (1, 1, -1, 2)])
def test_impossible_share_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be dealt"):
        Share(*numbers)
