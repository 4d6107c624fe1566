import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data_loaders.conftest import WriteTable
from tests.support.plain_pairs import PlainPairs, plan_of

from physedit.data_loaders.loader import CHANGED, PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, EditSample, PromptLevel
from physedit.data_loaders.slots import LevelMix

LEVELS = LevelMix({PromptLevel.SUPERFICIAL: 1.0, PromptLevel.EXPLICIT: 1.0})


def batches(dataset: PlainPairs, share: Share, folder: Path | None = None, **options: int) -> TrainingBatches:
    with TemporaryDirectory() as made:
        plan = plan_of(dataset, folder or Path(made), levels=LEVELS, micro_batch=share.micro_batch)
    return TrainingBatches(dataset, plan, share=share, **options)


def take(dataset: PlainPairs, share: Share, num_steps: int, **options: int) -> list[list[PositionedBatch]]:
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
    whole = [contents(step) for step in take(PlainPairs(), Share(16), 3)]
    ranks = [take(PlainPairs(), Share(micro_batch, accumulation, rank, world), 3) for rank in range(world)]
    split = [contents([micro for rank in ranks for micro in rank[step]]) for step in range(3)]
    assert split == whole
    assert [position for step in whole for position, _, _ in step] == list(range(48))


def test_picture_instruction_and_id_of_a_sample_stay_together_over_epochs() -> None:
    for step in take(PlainPairs(), Share(2, 1, 1, 2), 20):
        for micro in step:
            for i, sample_id in enumerate(micro.batch.sample_ids):
                row = int(sample_id.removeprefix("plain:"))
                assert micro.batch.sources[i].unique().tolist() == [row]
                assert micro.batch.targets[i].unique().tolist() == [row + 100]
                assert micro.batch.instructions[i].endswith(f" {row}")


def test_start_in_the_middle_equals_the_rest_of_the_run() -> None:
    share = Share(2, 2)
    whole = take(PlainPairs(), share, 6)
    rest = take(PlainPairs(), share, 4, start_position=8)
    assert [contents(step) for step in rest] == [contents(step) for step in whole[2:]]


def test_start_in_the_middle_decodes_nothing_before_it() -> None:
    dataset = PlainPairs()
    next(iter(batches(dataset, Share(2), start_position=1_000_000)))
    assert len(dataset.decoded) == 2


def test_stop_position_ends_the_run_and_nothing_beyond_is_decoded() -> None:
    dataset = PlainPairs()
    for rank in (0, 1):
        positions = [b.positions for b in batches(dataset, Share(2, 2, rank, 2), stop_position=16)]
        assert positions == [(2 * rank + 4 * i, 2 * rank + 4 * i + 1) for i in range(4)]
    assert len(dataset.decoded) == 16


def test_worker_processes_yield_the_same_batches() -> None:
    alone = list(batches(PlainPairs(), Share(3), stop_position=12))
    helped = list(batches(PlainPairs(), Share(3), stop_position=12, num_workers=2))
    assert [contents([b]) for b in helped] == [contents([b]) for b in alone]
    assert all(
        torch.equal(torch.stack(a.batch.sources), torch.stack(b.batch.sources))
        for a, b in zip(alone, helped, strict=True)
    )


@pytest.mark.parametrize("kept", [1, 30])
def test_pictures_from_workers_stay_as_they_are_however_long_they_are_kept(kept: int) -> None:
    """More batches are kept than there are slabs, and pictures outgrow the slabs of most batches."""
    dataset = PlainPairs(200, sizes=[(2, 2)] * 199 + [(40, 40)])
    recent: deque[PositionedBatch] = deque(maxlen=kept)
    num_seen = 0
    for positioned in batches(dataset, Share(4), stop_position=612, num_workers=2):
        recent.append(positioned)
        num_seen += len(real([positioned]))
        for name, colour in real(recent):
            assert int(name.removeprefix("plain:")) % 100 == colour
    assert num_seen == 600  # three epochs of 204 slots


def test_stored_pictures_from_workers_are_those_of_one_process(write_pica: WriteTable, tmp_path: Path) -> None:
    """Pictures are decoded into the slabs; a row whose target is broken leaves a stray source in one."""
    rng = np.random.default_rng(0)
    data = {}
    for name in ("src_img", "tgt_img"):
        cells = []
        for size in [(40, 30), (40, 30), (24, 56)] * 4:
            stream = BytesIO()
            Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(stream, "JPEG")
            cells.append({"bytes": stream.getvalue(), "path": None})
        data[name] = cells
    data["tgt_img"][4]["bytes"] = data["tgt_img"][4]["bytes"][:-200]
    dataset = Pica100k(path=str(write_pica(num_rows=12, **data)))
    plan = plan_of(dataset, tmp_path / "index", micro_batch=4)
    alone, helped = (
        list(TrainingBatches(dataset, plan, share=Share(4), stop_position=24, num_workers=num)) for num in (0, 2)
    )
    assert [each.dropped for each in helped] == [each.dropped for each in alone]
    assert sum(len(each.dropped) for each in alone) == 2  # in each of two epochs
    for one, other in zip(alone, helped, strict=True):
        assert (one.positions, one.batch.sample_ids) == (other.positions, other.batch.sample_ids)
        for name in ("sources", "targets"):
            assert all(map(torch.equal, getattr(one.batch, name), getattr(other.batch, name)))


class Referring(PlainPairs):
    """Every row has two references."""

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        sample = super().sample(index, level)
        return replace(sample, references=(sample.source + 1, sample.target + 1))


def test_references_arrive_with_their_pair_from_workers() -> None:
    for positioned in batches(Referring(9), Share(3), stop_position=9, num_workers=2):
        batch = positioned.batch
        for source, target, references in zip(batch.sources, batch.targets, batch.references, strict=True):
            assert torch.equal(references[0], source + 1)
            assert torch.equal(references[1], target + 1)


def test_reading_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(batches(PlainPairs(), Share(3), stop_position=9))
    assert torch.equal(torch.get_rng_state(), before)


class Unequal(PlainPairs):
    """Every other row has a reference."""

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        sample = super().sample(index, level)
        return replace(sample, references=(sample.source,) * (index % 2))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_rows_that_cannot_be_joined_stop_the_run_with_their_names_and_nothing_else(num_workers: int) -> None:
    with pytest.raises(DatasetRowError, match="A batch needs pairs with equally many references") as error:
        list(batches(Unequal(), Share(3), stop_position=9, num_workers=num_workers))
    assert len(str(error.value).splitlines()) == 1


def real(stream: Iterable[PositionedBatch]) -> list[tuple[str, int]]:
    """Id and colour of every sample that counts."""
    return [
        (name, int(source.unique()))
        for positioned in stream
        for name, source, weight in zip(
            positioned.batch.sample_ids, positioned.batch.sources, positioned.batch.weights, strict=True
        )
        if weight
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("micro_batch", [1, 2, 5])
def test_broken_row_is_counted_by_name_and_the_other_nine_arrive_once(num_workers: int, micro_batch: int) -> None:
    dataset = PlainPairs(10, broken=frozenset({3}))
    read = list(batches(dataset, Share(micro_batch), stop_position=10, num_workers=num_workers))
    assert sorted(real(read)) == [(f"plain:{row}", row) for row in range(10) if row != 3]
    (dropped,) = [row for positioned in read for row in positioned.dropped]
    assert (dropped.index, dropped.name.sample_id, dropped.reason) == (3, "plain:3", RowProblem.DAMAGED)
    assert "plain.parquet, row 3" in dropped.message
    assert [len(positioned.batch) for positioned in read] == [micro_batch] * (10 // micro_batch)


def test_stand_in_of_a_broken_row_is_another_picture_of_its_micro_batch_with_weight_zero() -> None:
    read = list(batches(PlainPairs(10, broken=frozenset({3})), Share(5), stop_position=10))
    (batch,) = [positioned.batch for positioned in read if positioned.dropped]
    place = batch.weights.index(0.0)
    others = [int(source.unique()) for i, source in enumerate(batch.sources) if i != place]
    assert batch.sample_ids[place] == "nothing for plain:3"
    assert int(batch.sources[place].unique()) in others
    assert sum(batch.weights) == 4.0


def test_micro_batch_of_a_broken_row_alone_is_black_and_of_its_size() -> None:
    dataset = PlainPairs(
        3, sizes=[(4, 6), (8, 2), (2, 2)], target_sizes=[(2, 3), (8, 2), (2, 2)], broken=frozenset({0})
    )
    (batch,) = [p.batch for p in batches(dataset, Share(1), stop_position=3) if p.dropped]
    assert [tuple(picture.shape) for picture in (*batch.sources, *batch.targets)] == [(3, 4, 6), (3, 2, 3)]
    assert batch.weights == (0.0,)
    assert batch.num_targets_of_other_size == 0
    assert not batch.sources[0].any()


def test_empty_slots_of_a_bucket_have_no_weight_and_no_dropped_row() -> None:
    dataset = PlainPairs(9, sizes=[(2, 2), (2, 2), (4, 2)])
    read = list(batches(dataset, Share(4), stop_position=12))
    assert sorted(real(read)) == [(f"plain:{row}", row) for row in range(9)]
    assert sum(batch.batch.weights.count(0.0) for batch in read) == 3
    assert not any(positioned.dropped for positioned in read)
    for positioned in read:
        assert len({picture.shape for picture in positioned.batch.sources}) == 1


def test_picture_that_changed_after_the_index_was_made_is_dropped(tmp_path: Path) -> None:
    plan = plan_of(PlainPairs(4), tmp_path)
    larger = PlainPairs(4, sizes=[(2, 2), (2, 2), (3, 2), (2, 2)])
    read = list(TrainingBatches(larger, plan, share=Share(2), stop_position=4))
    assert [(row.index, row.reason) for p in read for row in p.dropped] == [(2, CHANGED)]
    assert sorted(real(read)) == [("plain:0", 0), ("plain:1", 1), ("plain:3", 3)]


MIXED_SIZES = [(2, 2)] * 31 + [(4, 2)] * 4 + [(2, 4)] * 4 + [(6, 2)] * 4 + [(2, 6)] * 2


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("sizes", "num_slots"), [([(2, 2)], 45), (MIXED_SIZES, 54)])
def test_two_epochs_over_any_ranks_cover_every_sample_twice(
    world: int, sizes: list[tuple[int, int]], num_slots: int
) -> None:
    dataset = PlainPairs(45, sizes=sizes)
    ranks = [list(batches(dataset, Share(3, 1, rank, world), stop_position=2 * num_slots)) for rank in range(world)]
    assert Counter(real(p for rank in ranks for p in rank)) == {(f"plain:{row}", row): 2 for row in range(45)}
    assert [len(rank) for rank in ranks] == [2 * num_slots // (3 * world)] * world


def test_order_does_not_depend_on_the_number_of_ranks() -> None:
    dataset = PlainPairs(30, sizes=[(2, 2), (4, 2), (2, 6)])
    alone = contents(list(batches(dataset, Share(2, 6), stop_position=72)))
    for world in (2, 3, 6):
        ranks = [list(batches(dataset, Share(2, 6 // world, rank, world), stop_position=72)) for rank in range(world)]
        assert contents([micro for rank in ranks for micro in rank]) == alone


def test_resume_decodes_at_most_one_micro_batch_and_what_the_workers_fetch_ahead() -> None:
    dataset = PlainPairs(60, sizes=[(2, 2), (4, 2), (2, 6)])
    stream = iter(batches(dataset, Share(4), start_position=4000))
    assert next(stream).positions == (4000, 4001, 4002, 4003)
    assert len(dataset.decoded) <= 4


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("sizes", [[(2, 2)], [(2, 2), (4, 2), (2, 2), (2, 6), (2, 2)]])
def test_resume_in_a_later_epoch_goes_on_as_the_whole_run(num_workers: int, sizes: list[tuple[int, int]]) -> None:
    dataset = PlainPairs(32, sizes=sizes)
    whole = list(batches(dataset, Share(4), stop_position=120))
    rest = list(batches(dataset, Share(4), start_position=44, stop_position=120, num_workers=num_workers))
    assert [contents([p]) for p in rest] == [contents([p]) for p in whole[11:]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_goes_on_when_the_process_group_is_told_to_stop(number: signal.Signals) -> None:
    others = set(multiprocessing.active_children())
    stream = iter(batches(PlainPairs(), Share(1), stop_position=30, num_workers=1))
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
from tests.data_loaders.test_loader import PlainPairs, Share, batches

stream = iter(batches(PlainPairs(), Share(1), num_workers=1))
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
    dataset = PlainPairs()
    dataset.levels = frozenset({PromptLevel.EXPLICIT})
    with pytest.raises(ValueError, match=r"superficial have a weight.*only explicit"):
        batches(dataset, Share(1))


@pytest.mark.parametrize(("start", "stop"), [(-4, None), (0, 6), (8, 4)])
def test_positions_that_are_no_whole_steps_are_refused(start: int, stop: int | None) -> None:
    with pytest.raises(ValueError, match="no whole number of optimizer steps of 4"):
        batches(PlainPairs(), Share(4), start_position=start, stop_position=stop)


@pytest.mark.parametrize("numbers", [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 2, 2), (1, 1, -1, 2)])
def test_impossible_share_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be dealt"):
        Share(*numbers)
