"""Filling a cache again encodes only what changed, and drops by name what cannot be encoded or read."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.encoded import (
    Pair,
    contents,
    counted,
    fill_alone,
    filling,
    micro_batches,
    some_pairs,
    write_pairs,
    write_picture,
)
from tests.support.memory_editors import Editor

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError
from physedit.models.backbone import conditioning_of

CPU = torch.device("cpu")


def refill(editor: Editor, folder: Path) -> tuple[int, int, int]:
    """Fills again and checks that the rows are those of a cache that is filled from nothing."""
    rows, counts = fill_alone(filling(editor, folder / "data", folder / "cache"))
    task = filling(editor, folder / "data", folder / "fresh")
    fresh, _ = fill_alone(task)
    stop = 2 * len(task.dataset)
    read = micro_batches(task, rows, size=1, stop=stop), micro_batches(task, fresh, size=1, stop=stop)
    for one, two in zip(*read, strict=True):
        assert one.batch.sample_ids == two.batch.sample_ids
        for first, second in ((one.batch.latents, two.batch.latents), (one.batch.texts, two.batch.texts)):
            assert all(torch.equal(first[0][name], value) for name, value in second[0].items())
    return counted(counts)


def test_nothing_is_encoded_twice(editor: Editor, filled: Path) -> None:
    assert refill(editor, filled) == (0, 5, 0)


def test_reordered_rows_are_reused(editor: Editor, filled: Path) -> None:
    write_pairs(filled / "data", some_pairs(5)[::-1])
    assert refill(editor, filled) == (0, 5, 0)


def test_changed_caption_re_encodes_its_row_alone(editor: Editor, filled: Path) -> None:
    pairs = some_pairs(5)
    write_pairs(filled / "data", [*pairs[:2], Pair(2, "Make it night."), *pairs[3:]])
    assert refill(editor, filled) == (1, 4, 0)


@pytest.mark.parametrize("side", ["a", "b"])
def test_picture_overwritten_with_the_same_size_and_time_re_encodes_its_row_alone(
    side: str, editor: Editor, filled: Path
) -> None:
    picture = filled / "data" / f"3{side}.bmp"
    before = picture.stat()
    write_picture(picture, seed=99)
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = picture.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert refill(editor, filled) == (1, 4, 0)


def test_removed_row_leaves_the_others_as_they_are(editor: Editor, filled: Path) -> None:
    pairs = some_pairs(5)
    write_pairs(filled / "data", [*pairs[:1], *pairs[2:]])
    assert refill(editor, filled) == (0, 4, 0)


def test_added_row_is_encoded_alone(editor: Editor, filled: Path) -> None:
    write_pairs(filled / "data", some_pairs(6))
    assert refill(editor, filled) == (1, 5, 0)


def test_damaged_entry_is_counted_and_re_encodes_its_row_alone(editor: Editor, filled: Path) -> None:
    (file,) = (filled / "cache").glob("*.data")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    _, counts = fill_alone(filling(editor, filled / "data", filled / "cache"))
    assert (*counted(counts), counts.damaged) == (1, 4, 0, 1)
    assert refill(editor, filled) == (0, 5, 0)


def test_entry_damaged_while_training_drops_its_row_by_name(editor: Editor, filled: Path) -> None:
    task = filling(editor, filled / "data", filled / "cache")
    rows, _ = fill_alone(task)
    (file,) = (filled / "cache").glob("*.data")
    os.truncate(file, file.stat().st_size - 1)  # before it is mapped
    read = micro_batches(task, rows, size=1, stop=5)
    (dropped,) = [row for micro in read for row in micro.dropped]
    assert dropped.reason == RowProblem.DAMAGED_ENTRY
    (stand_in,) = [micro.batch for micro in read if micro.dropped]
    assert stand_in.weights == (0.0,)
    assert stand_in.sample_ids == (f"nothing for {dropped.name.sample_id}",)
    assert conditioning_of(editor, stand_in, CPU).target.isfinite().all()


def test_cache_of_which_nothing_can_be_read_stops_the_run(editor: Editor, filled: Path) -> None:
    task = filling(editor, filled / "data", filled / "cache")
    rows, _ = fill_alone(task)
    (file,) = (filled / "cache").glob("*.data")
    os.truncate(file, 0)
    with pytest.raises(DatasetRowError, match="No entry of the encoded cache can be read"):
        micro_batches(task, rows, size=1, stop=5)


def test_row_that_cannot_be_decoded_is_dropped_by_name(editor: Editor, filled: Path) -> None:
    picture = filled / "data" / "1b.bmp"
    picture.write_bytes(picture.read_bytes()[:5000])
    rows, counts = fill_alone(filling(editor, filled / "data", filled / "cache"))
    assert counted(counts) == (0, 4, 1)
    assert [(row.index, row.reason) for row in rows.dropped] == [(1, "damaged picture")]


def test_not_a_number_is_dropped_with_the_name_of_its_row(
    editor: Editor, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, bad = editor.encode_pictures, 2

    def broken(batch: Any) -> Any:
        made = encode(batch)
        if batch.sample_ids[0].endswith(f":{bad}"):
            made.target[0, 0, 0, 0] = float("nan")
        return made

    monkeypatch.setattr(editor, "encode_pictures", broken)
    task = filling(editor, filled / "data", filled / "other")
    rows, counts = fill_alone(task)
    assert counted(counts) == (4, 0, 1)
    assert counts.dropped == {"encoded to not-a-number": 1}
    (dropped,) = rows.dropped
    assert dropped.index == bad
    assert "metadata.jsonl, row 2: its encoded target holds NaN" in dropped.message
    assert all(value.isfinite().all() for entry in contents(filled / "other").values() for value in entry.values())
    read = micro_batches(task, rows, size=1, stop=5)
    assert [row.index for micro in read for row in micro.dropped] == [bad]
