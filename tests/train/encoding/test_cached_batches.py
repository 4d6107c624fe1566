"""Cached batches are the live ones: captions, pictures and stand-ins belong together as in a run without a cache."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.encoded import (
    counted,
    fill_alone,
    filling,
    micro_batches,
    some_pairs,
    write_pairs,
    write_picture,
)
from tests.support.memory_editors import Editor
from tests.support.qwen_editors import PLUS
from tests.support.qwen_editors import build as build_qwen

from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.sample import PromptLevel
from physedit.models.backbone import conditioning_of
from physedit.models.qwen_image_edit import QwenImageEdit

CPU = torch.device("cpu")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cached_batches_are_the_live_ones_bit_for_bit_over_shuffled_epochs(
    num_workers: int, editor: Editor, tmp_path: Path
) -> None:
    write_pairs(tmp_path / "data", some_pairs(8))
    task = filling(editor, tmp_path / "data", tmp_path / "cache", micro_batch=2)
    rows, counts = fill_alone(task)
    assert counted(counts) == (8, 0, 0)
    cached = micro_batches(task, rows, size=2, stop=24, num_workers=num_workers)
    live = micro_batches(task, size=2, stop=24)
    assert len(cached) == len(live) == 12
    padded = [assert_same(editor, one, two) for one, two in zip(cached, live, strict=True)]
    if isinstance(editor, QwenImageEdit):
        assert set(padded) == {False, True}


def assert_same(editor: Editor, one: PositionedBatch, two: PositionedBatch) -> bool:
    """Compares the conditionings of two micro batches bit for bit; True if their text is padded."""
    assert (one.positions, one.batch.sample_ids) == (two.positions, two.batch.sample_ids)
    assert one.batch.weights == two.batch.weights
    assert one.batch.num_targets_of_other_size == two.batch.num_targets_of_other_size
    first, second = conditioning_of(editor, one.batch, CPU), conditioning_of(editor, two.batch, CPU)
    for name in ("target", "change"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert all(torch.equal(*pair) for pair in zip(first.sources, second.sources, strict=True))
    assert first.text.keys() == second.text.keys()
    assert all(torch.equal(first.text[name], second.text[name]) for name in first.text)
    assert first.time_shift == second.time_shift
    assert first.target.stride() == second.target.stride()
    return "mask" in first.text


def test_references_are_cached_with_their_pair_in_bfloat16(tmp_path: Path) -> None:
    editor = build_qwen(PLUS, dtype="bfloat16")
    write_pairs(tmp_path / "data", some_pairs(4))
    task = filling(editor, tmp_path / "data", tmp_path / "cache", micro_batch=2, references=("more",))
    rows, counts = fill_alone(replace(task, num_workers=2))
    assert counted(counts) == (4, 0, 0)
    cached, live = micro_batches(task, rows, size=2, stop=8), micro_batches(task, size=2, stop=8)
    for one, two in zip(cached, live, strict=True):
        assert_same(editor, one, two)
        assert len(one.batch.latents[0]) == 5  # target, two sources, change, time shift
        assert one.batch.latents[0]["source_1"].dtype == torch.bfloat16
    reference = tmp_path / "data" / "2c.bmp"
    write_picture(reference, seed=77)
    assert counted(fill_alone(task)[1]) == (1, 3, 0)


def test_broken_row_has_the_same_stand_in_as_in_the_live_run(editor: Editor, tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", some_pairs(5))
    broken = tmp_path / "data" / "2a.bmp"
    broken.write_bytes(broken.read_bytes()[:5000])
    task = filling(editor, tmp_path / "data", tmp_path / "cache", micro_batch=5)
    rows, counts = fill_alone(task)
    assert counted(counts) == (4, 0, 1)
    cached, live = micro_batches(task, rows, size=5, stop=10), micro_batches(task, size=5, stop=10)
    for one, two in zip(cached, live, strict=True):
        assert_same(editor, one, two)
        assert [(row.index, row.reason) for row in one.dropped] == [(row.index, row.reason) for row in two.dropped]
        assert [row.index for row in one.dropped] == [2]


def test_two_ranks_over_two_epochs_keep_every_caption_with_its_pictures(editor: Editor, tmp_path: Path) -> None:
    pairs = some_pairs(6)
    write_pairs(tmp_path / "data", pairs)
    task = filling(editor, tmp_path / "data", tmp_path / "cache")
    rows, _ = fill_alone(task)
    samples = [task.dataset.sample(row, PromptLevel.SUPERFICIAL) for row in range(6)]
    captions = {sample.sample_id: pair.caption for sample, pair in zip(samples, pairs, strict=True)}
    alone = {sample.sample_id: sample for sample in samples}
    seen = []
    for rank in (0, 1):
        run: dict[str, Any] = {"share": Share(1, 1, rank, 2), "stop_position": 12, "encoded": rows}
        for micro in TrainingBatches(task.dataset, task.plan, **run):
            (name,), (latents,), (text,) = micro.batch.sample_ids, micro.batch.latents, micro.batch.texts
            sample = alone[name]
            for part, value in editor.encode_text(((sample.source,),), (captions[name],)).items():
                assert torch.equal(text[part], value)
            # Pictures of the size they are worked at.
            assert torch.equal(latents["target"], editor._pictures.of(sample.target[None]))
            assert torch.equal(latents["source_0"], editor._pictures.of(sample.source[None]))
            seen.append(name)
    assert sorted(seen) == sorted([*alone, *alone])
