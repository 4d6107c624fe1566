import json
from pathlib import Path

import pytest

from physedit.data_loaders.mira400k import Mira400k
from physedit.data_loaders.sample import DatasetLayoutError, PromptLevel

LEVEL = PromptLevel.SUPERFICIAL


@pytest.fixture
def folder(tmp_path: Path, png) -> Path:
    """Twelve pairs of three clips, whose frames are 0, 10, 20 and 30 apart."""
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(png((i, 0, 0)))
    rows = [
        {
            "source": f"{i}.png",
            "target": f"{(i + 1) % 12}.png",
            "instruction": f"say {i}",
            "caption": f"see {i}",
            "clip_id": f"0.{i // 4}",
            "source_frame": 100,
            "target_frame": 100 - 10 * (i % 4),
        }
        for i in range(12)
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def rows_of(data: Mira400k) -> list[int]:
    return [data.name(index).origin.row for index in range(len(data))]


def test_pairs_have_one_level_and_no_label(folder: Path) -> None:
    data = Mira400k(path=str(folder))
    sample = data.sample(3, LEVEL)
    assert (sample.instruction, sample.law, sample.operation) == ("say 3", None, None)
    assert (sample.source[0, 0, 0], sample.target[0, 0, 0]) == (3, 4)
    assert data.levels == {LEVEL}


def test_caption_may_instruct(folder: Path) -> None:
    assert Mira400k(path=str(folder), text="caption").sample(3, LEVEL).instruction == "see 3"


def test_near_frames_are_left_out(folder: Path) -> None:
    assert rows_of(Mira400k(path=str(folder), min_frames_apart=20)) == [2, 3, 6, 7, 10, 11]
    with pytest.raises(ValueError, match=r"No row is left of 12 with min_frames_apart=31"):
        Mira400k(path=str(folder), min_frames_apart=31)
    with pytest.raises(ValueError, match=r"data\.min_frames_apart is a number of frames of at least 0, found -1"):
        Mira400k(path=str(folder), min_frames_apart=-1)


def test_clip_is_held_out_as_a_whole(folder: Path) -> None:
    sides = {side: rows_of(Mira400k(path=str(folder), split=side, heldout_share=0.4)) for side in ("train", "heldout")}
    assert sorted(sides["train"] + sides["heldout"]) == list(range(12))
    assert {row // 4 for row in sides["train"]}.isdisjoint({row // 4 for row in sides["heldout"]})
    assert sides["heldout"]


def test_optional_columns_are_needed_only_by_what_uses_them(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    lean = [{name: row[name] for name in ("source", "target", "instruction")} for row in rows]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lean)))
    assert len(Mira400k(path=str(folder))) == 12
    by_picture = Mira400k(path=str(folder), split="train", heldout_share=0.5, split_by="picture")
    assert 0 < len(by_picture) < 12
    for options in ({"text": "caption"}, {"min_frames_apart": 1}, {"split": "train", "heldout_share": 0.5}):
        with pytest.raises(DatasetLayoutError, match="lacks the columns"):
            Mira400k(path=str(folder), **options)
