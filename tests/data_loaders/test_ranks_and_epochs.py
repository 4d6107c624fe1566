"""Each epoch is dealt over the ranks once, and whatever belongs to a sample stays with it."""

from collections import Counter
from pathlib import Path

import pytest
from tests.support.plain_pairs import SUPERFICIAL, PlainPairs, plan_of

from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.slots import LevelMix

NUM_EPOCHS = 2
WORLDS = (1, 2, 4)
MIXED = LevelMix({PromptLevel.SUPERFICIAL: 1.0, PromptLevel.EXPLICIT: 1.0})
ONE_SIZE = ((4, 4),)
SIZES = ((4, 4), (4, 4), (8, 4), (4, 8))


def dealt(
    folder: Path, world: int, *, num_rows: int, sizes: tuple[tuple[int, int], ...], micro_batch: int = 2,
    levels: LevelMix = SUPERFICIAL, num_workers: int = 0,
) -> list[list[PositionedBatch]]:  # fmt: skip
    """Returns the micro batches of each rank over two epochs."""
    dataset = PlainPairs(num_rows, sizes=sizes)
    plan = plan_of(dataset, folder, micro_batch=micro_batch, levels=levels)
    stop = NUM_EPOCHS * (plan.num_samples + plan.num_empty)
    shares = [Share(micro_batch, 1, rank, world) for rank in range(world)]
    return [
        list(TrainingBatches(dataset, plan, share=share, stop_position=stop, num_workers=num_workers))
        for share in shares
    ]


def rows(batches: list[PositionedBatch]) -> list[tuple[int, str]]:
    """Returns position and sample of all that is no stand-in."""
    return [
        (position, name)
        for each in batches
        for position, name, weight in zip(each.positions, each.batch.sample_ids, each.batch.weights, strict=True)
        if weight
    ]


@pytest.mark.parametrize("sizes", [ONE_SIZE, SIZES], ids=["one size", "buckets"])
@pytest.mark.parametrize("world", WORLDS)
def test_each_epoch_covers_the_set_once_and_no_sample_is_on_two_ranks(
    tmp_path: Path, world: int, sizes: tuple[tuple[int, int], ...]
) -> None:
    num_rows = 32
    ranks = [rows(batches) for batches in dealt(tmp_path, world, num_rows=num_rows, sizes=sizes)]
    assert len({len(batches) for batches in dealt(tmp_path, world, num_rows=num_rows, sizes=sizes)}) == 1
    everything = sorted(pair for rank in ranks for pair in rank)
    length = len(everything) // NUM_EPOCHS
    assert length == num_rows
    for epoch in range(NUM_EPOCHS):
        names = [name for _, name in everything[epoch * length : (epoch + 1) * length]]
        assert Counter(names) == {f"plain:{row}": 1 for row in range(num_rows)}
    # Positions tell the ranks apart: none is taken twice, and each rank has its part of each epoch.
    assert len({position for position, _ in everything}) == len(everything)
    first, second = ([n for p, n in everything[e * length : (e + 1) * length]] for e in range(NUM_EPOCHS))
    assert first != second


@pytest.mark.parametrize("sizes", [ONE_SIZE, SIZES], ids=["one size", "buckets"])
def test_any_number_of_ranks_sees_the_same_sample_at_every_position(
    tmp_path: Path, sizes: tuple[tuple[int, int], ...]
) -> None:
    orders = [
        sorted(pair for batches in dealt(tmp_path, world, num_rows=32, sizes=sizes) for pair in rows(batches))
        for world in WORLDS
    ]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_caption_source_and_target_have_one_id_over_two_ranks_and_two_epochs(tmp_path: Path, num_workers: int) -> None:
    seen: Counter[str] = Counter()
    captions = set()
    for batches in dealt(tmp_path, 2, num_rows=24, sizes=SIZES, levels=MIXED, num_workers=num_workers):
        for each in batches:
            batch = each.batch
            for place, (name, weight) in enumerate(zip(batch.sample_ids, batch.weights, strict=True)):
                if not weight:
                    continue
                row = int(name.removeprefix("plain:"))
                assert batch.sources[place].unique().tolist() == [row]
                assert batch.targets[place].unique().tolist() == [row + 100]
                assert batch.sources[place].shape[-2:] == SIZES[row % len(SIZES)]
                level, caption = batch.instructions[place].split()
                assert (level, caption) in {(PromptLevel.SUPERFICIAL, str(row)), (PromptLevel.EXPLICIT, str(row))}
                seen[name] += 1
                captions.add(batch.instructions[place])
    assert seen == {f"plain:{row}": NUM_EPOCHS for row in range(24)}
    assert len(captions) > 24  # both levels are drawn
