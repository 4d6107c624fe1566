import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.sample import DatasetRowError, EditSample, Origin, PromptLevel

LEVELS = {PromptLevel.SUPERFICIAL: 1.0, PromptLevel.EXPLICIT: 1.0}


class Counted:
    """Nine tiny pairs that carry their row in every field, and a list of the rows decoded in this process."""

    levels = frozenset(PromptLevel)
    max_references = 0

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
                assert micro.batch.sources[i].unique().tolist() == [row]
                assert micro.batch.targets[i].unique().tolist() == [row + 100]
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
    assert all(
        torch.equal(torch.stack(a.batch.sources), torch.stack(b.batch.sources))
        for a, b in zip(alone, helped, strict=True)
    )


def test_reading_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(batches(Counted(), Share(3), stop_position=9))
    assert torch.equal(torch.get_rng_state(), before)


class Unequal(Counted):
    """Every other row has a reference."""

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        sample = super().sample(index, level)
        return replace(sample, references=(sample.source,) * (index % 2))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "message"),
    [(Counted(broken=3), "row 3 is broken"), (Unequal(), "A batch needs pairs with equally many references")],
)
def test_broken_row_stops_the_run_with_its_name_and_nothing_else(
    dataset: Counted, message: str, num_workers: int
) -> None:
    with pytest.raises(DatasetRowError, match=message) as error:
        list(batches(dataset, Share(3), stop_position=9, num_workers=num_workers))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_goes_on_when_the_process_group_is_told_to_stop(number: signal.Signals) -> None:
    others = set(multiprocessing.active_children())
    stream = iter(batches(Counted(), Share(1), stop_position=30, num_workers=1))
    first = next(stream)
    (worker,) = set(multiprocessing.active_children()) - others
    assert worker.pid is not None
    for _ in range(3):
        os.kill(worker.pid, number)
    assert [b.positions for b in (first, *stream)] == [(i,) for i in range(30)]


START_READING = """
import os, sys
sys.path[:0] = {path!r}
from multiprocessing import active_children
from tests.data_loaders.test_loader import Counted, Share, batches

stream = iter(batches(Counted(), Share(1), num_workers=1))
next(stream)
os.write(1, f"{{active_children()[0].pid}} ".encode())
"""


@pytest.fixture
def start_reading() -> str:
    """A program that reads a batch, says its worker's number, and holds the stream until it ends."""
    return START_READING.format(path=[str(Path(__file__).parents[2])])


def test_program_ends_although_its_stream_is_still_open(start_reading: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", start_reading], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert is_gone(int(done.stdout))


def test_worker_of_a_killed_program_ends(start_reading: str) -> None:
    program = [sys.executable, "-c", start_reading + "os.kill(os.getpid(), 9)"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert is_gone(int(done.stdout), within_s=60)


def is_gone(process: int, within_s: int = 0) -> bool:
    """True if the process ends within the time."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


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
