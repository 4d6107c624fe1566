"""Buckets, and what the size rules of the shipped editors make of pictures that share one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.plain_pairs import SUPERFICIAL, PlainPairs

from physedit.data_loaders.buckets import NO_BUCKET, find_buckets
from physedit.data_loaders.geometry import fitted_target, resized
from physedit.data_loaders.loader import Share, TrainingBatches
from physedit.data_loaders.mixture import members_of
from physedit.data_loaders.sample import PictureSizeError
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import RunPlan
from physedit.models.pictures import batch_sizes, stacked_sources, stacked_targets
from physedit.models.sizes import RELEASED_AREA_PX, PictureSizes, kontext_sizes, qwen_size

SizeRule = Callable[[int, int], PictureSizes]


def qwen_sizes(height: int, width: int, *, area_px: int) -> PictureSizes:
    size = qwen_size(height, width, area_px=area_px)
    return PictureSizes(size, size)


RULES = {
    "kontext": (partial(kontext_sizes, area_px=RELEASED_AREA_PX, multiple_px=16), 16),
    "kontext_small": (partial(kontext_sizes, area_px=64 * 64, multiple_px=16), 16),
    "qwen": (partial(qwen_sizes, area_px=RELEASED_AREA_PX), 32),
    "qwen_small": (partial(qwen_sizes, area_px=128 * 128), 32),
}
ODD = [(1, 1), (15, 1000), (560, 1024), (1080, 1920), (674, 389), (4000, 100), (1, 5000), (2, 60000)]
TALL, WIDE, FLAT = (48, 32), (32, 48), (24, 64)


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> SizeRule:
    return RULES[request.param][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", RULES)
def test_odd_sizes_give_allowed_sizes_or_a_named_refusal(name: str) -> None:
    rule, multiple = RULES[name]
    sources = np.array(ODD, np.int32)
    buckets = find_buckets(sources, rule)
    num_taken = 0
    for (height, width), number in zip(ODD, buckets.numbers.tolist(), strict=True):
        if number == NO_BUCKET:
            with pytest.raises(PictureSizeError, match=f"A picture of {width}x{height} is too long and narrow"):
                rule(height, width)
        else:
            num_taken += 1
            sizes = buckets.sizes[number]
            assert isinstance(sizes, PictureSizes)
            assert all(side > 0 and side % multiple == 0 for side in (*sizes.source, *sizes.output))
    assert num_taken >= 4


def test_the_rule_is_asked_once_for_each_stored_size() -> None:
    asked = []
    sources = np.array([(2, 3), (4, 5), (2, 3), (0, 0)] * 1000, np.int32)
    buckets = find_buckets(sources, lambda height, width: asked.append((height, width)) or height)  # type: ignore[func-returns-value]
    assert sorted(asked) == [(2, 3), (4, 5)]
    assert buckets.numbers[:4].tolist() == [0, 1, 0, NO_BUCKET]
    assert buckets.sizes == (2, 4)


@pytest.mark.parametrize(("num_sizes", "kind"), [(200, np.int16), (40_000, np.int32)])
def test_a_bucket_is_a_sizes_own_wherever_its_rows_stand(num_sizes: int, kind: type) -> None:
    rng = np.random.default_rng(0)
    sizes = np.stack(np.divmod(rng.permutation(300 * 300)[:num_sizes], 300), axis=1).astype(np.int32) + 1
    sources = np.concatenate([sizes, sizes[rng.integers(0, num_sizes, 20_000)]])
    order = rng.permutation(len(sources))
    buckets, shuffled = (
        find_buckets(rows, lambda height, width: (height, width)) for rows in (sources, sources[order])
    )
    assert buckets.numbers.dtype == kind
    assert buckets.sizes == shuffled.sizes == tuple(sorted(map(tuple, sizes.tolist())))
    assert np.array_equal(buckets.numbers[order], shuffled.numbers)
    assert np.array_equal(np.array(buckets.sizes)[buckets.numbers], sources)


def test_no_rows_have_no_buckets() -> None:
    buckets = find_buckets(np.empty((0, 2), np.int32), lambda height, width: (height, width))
    assert (len(buckets.numbers), buckets.sizes) == (0, ())


def test_stored_sizes_that_come_out_alike_share_a_bucket(rule: SizeRule) -> None:
    buckets = find_buckets(np.array([(64, 64), (96, 96), (64, 128), (128, 256)], np.int32), rule)
    assert buckets.numbers.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["kontext", "qwen"])
def test_a_picture_of_a_size_that_the_editor_works_at_is_not_touched(name: str) -> None:
    """Of Qwen's sizes those up to 2 to 1: narrower ones are no fixed points of the pipeline's own rounding."""
    rule, _ = RULES[name]
    rng = np.random.default_rng(0)
    stored = [(int(h), int(w)) for h, w in rng.integers(300, 3000, (4000, 2)) if 1 / 2 <= h / w <= 2]
    worked_at = sorted({rule(*size).source for size in stored})
    kept = [size for size in worked_at if rule(*size).source == size]
    assert len(worked_at) >= 11
    assert kept == worked_at if name == "kontext" else len(kept) >= len(worked_at) // 2
    for height, width in kept[::3]:
        picture = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
        given, sizes = ((picture,),), batch_sizes(((picture,),), ("a",), rule, max_sources=1)
        assert torch.equal(stacked_sources(given, sizes)[0][0], picture)


@pytest.mark.parametrize("stored", [(30, 50), (100, 37), (200, 120)])
def test_source_and_target_get_the_same_transform(rule: SizeRule, stored: tuple[int, int]) -> None:
    """A coordinate picture as source and target: what is done to one is done to the other."""
    height, width = stored
    rows = torch.linspace(0, 255, height).to(torch.uint8)[:, None].expand(height, width)
    columns = torch.linspace(0, 255, width).to(torch.uint8)[None, :].expand(height, width)
    picture = torch.stack([columns, rows, torch.zeros_like(rows)])
    size = rule(height, width).output
    assert torch.equal(fitted_target(picture, picture, *size), resized(picture, *size))
    twice = picture.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    assert (fitted_target(twice, picture, *size).float() - resized(picture, *size).float()).abs().mean() < 4


@pytest.mark.parametrize("name", ["kontext_small", "qwen_small"])
def test_every_micro_batch_of_unlike_sources_is_one_that_the_editor_takes(name: str, tmp_path: Path) -> None:
    rule, _ = RULES[name]
    dataset = PlainPairs(40, sizes=[TALL, WIDE, TALL, FLAT], target_sizes=[TALL])
    index = SizeIndex.of(dataset, tmp_path, num_workers=0)
    buckets = find_buckets(index.rows["source"], rule)
    plan = RunPlan(index, buckets, members_of(dataset), seed=1, levels=SUPERFICIAL, micro_batch=4)
    assert plan.num_fitted == 20
    num_slots = plan.num_samples + plan.num_empty
    for positioned in TrainingBatches(dataset, plan, share=Share(4), stop_position=num_slots):
        batch = positioned.batch
        sizes = batch_sizes(batch.given, batch.sample_ids, rule, max_sources=1)
        assert stacked_targets(batch, sizes).shape[0] == stacked_sources(batch.given, sizes)[0].shape[0] == 4
