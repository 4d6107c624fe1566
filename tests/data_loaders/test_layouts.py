"""The layouts that pairs are read from, beside those in test_pairs.py and test_tar_rows.py."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from physedit.data_loaders import hub, layouts
from physedit.data_loaders.hub import HubSet, list_parquet, parse_hub
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.row_group_rows import RowGroupRows
from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, PromptLevel

COLUMNS = {"source": "in", "target": "out", "instruction": "say", "level": "explicit"}
LEVEL = PromptLevel.EXPLICIT
TEXTS = ["explicit_prompt"]
PICTURES = ["src_img", "tgt_img"]


CAPTIONS = ["plain", "把雪 add", "smile 🙂", "café", "line\u2028apart", "ends like Windows"]
READ_CAPTIONS = """
import json, sys
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.sample import DatasetRowError, PromptLevel
data = Pairs(path=sys.argv[1], source="in", target="out", instruction="say", level="explicit")
found = []
for index in range(len(data)):
    try:
        found.append(data.stored(index, PromptLevel.EXPLICIT).instruction)
    except DatasetRowError as error:
        found.append([error.reason, str(error)])
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_captions_are_read_exactly_in_any_locale_and_the_bad_line_is_named(tmp_path: Path, png, name: str) -> None:
    """A18: a byte of Windows' code page, a byte order mark, Chinese, emoji and CRLF, under LANG=C."""
    (tmp_path / "a.png").write_bytes(png((1, 1, 1)))
    lines = [json.dumps({"in": "a.png", "out": "a.png", "say": text}, ensure_ascii=False) for text in CAPTIONS]
    if name.endswith("csv"):
        lines = ["in,out,say", *(f'a.png,a.png,"{text}"' for text in CAPTIONS)]
    bad = lines[-1].replace("ends like Windows", "it@s").encode().replace(b"@", b"\x92")
    data = b"\xef\xbb\xbf" + b"".join(line.encode() + b"\r\n" for line in lines) + bad
    (tmp_path / name).write_bytes(data)
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", READ_CAPTIONS, str(tmp_path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *fine, (reason, message) = json.loads(ran.stdout)
    assert fine == CAPTIONS
    assert reason == "text is not UTF-8"
    assert f"Line {len(lines) + 1} of {tmp_path / name} is not UTF-8: byte 0x92" in message


def test_row_with_more_cells_than_the_header_is_refused_not_shifted(tmp_path: Path, png) -> None:
    (tmp_path / "a.png").write_bytes(png((1, 1, 1)))
    (tmp_path / "metadata.csv").write_text("in,out,say\na.png,a.png,make it wet, please\na.png,a.png,fine\n")
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert [data.header(i).problem for i in (0, 1)] == ["line is no row", None]
    with pytest.raises(DatasetRowError, match=r"Line 2 of .*more cells than the header\. Quote cells"):
        data.stored(0, LEVEL)


def test_cell_of_several_lines_is_one_row(tmp_path: Path, png) -> None:
    (tmp_path / "a.png").write_bytes(png((1, 1, 1)))
    (tmp_path / "metadata.csv").write_text('in,out,say\na.png,a.png,"two\nlines"\na.png,a.png,fine\n')
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert [data.stored(i, LEVEL).instruction for i in range(len(data))] == ["two\nlines", "fine"]


def test_table_in_utf16_is_refused_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("in,out,say\na.png,a.png,x\n", encoding="utf-16")
    with pytest.raises(DatasetLayoutError, match=r"metadata\.csv is UTF-16\. Save it as UTF-8"):
        Pairs(path=str(tmp_path), **COLUMNS)


def test_fingerprint_follows_the_order_of_rows_and_each_picture_file(tmp_path: Path, png) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png((1, 1, 1)))
    lines = [json.dumps({"in": name, "out": "a.png", "say": "x"}) for name in ("a.png", "b.png")]

    def fingerprint(rows: list[str]) -> str:
        (tmp_path / "metadata.jsonl").write_text("\n".join(rows))
        os.utime(tmp_path / "metadata.jsonl", ns=(len(rows), int(rows[0] == lines[0])))
        return Pairs(path=str(tmp_path), **COLUMNS).fingerprint

    first = fingerprint(lines)
    assert fingerprint(lines) == first
    assert fingerprint(lines[::-1]) != first
    assert fingerprint(lines[:1]) != first
    (tmp_path / "b.png").write_bytes(png((2, 2, 2), 32))
    assert fingerprint(lines) != first


def test_folder_that_has_no_effect_or_is_not_there_is_refused(write_pica, tmp_path: Path) -> None:
    columns = {**COLUMNS, "source": "src_img", "target": "tgt_img", "instruction": "explicit_prompt"}
    with pytest.raises(ValueError, match=r"data\.folder=pictures has no effect"):
        Pairs(path=str(write_pica()), folder="pictures", **columns)
    (tmp_path / "list.csv").write_text("in,out,say\n")
    with pytest.raises(DatasetLayoutError, match=r"data\.folder=.*absent is no folder"):
        Pairs(path=str(tmp_path / "list.csv"), folder=str(tmp_path / "absent"), **COLUMNS)


def test_parquet_that_names_its_pictures_finds_them_beside_itself(tmp_path: Path, png, own_arrow_cache: None) -> None:
    import pyarrow as pa

    (tmp_path / "a.png").write_bytes(png((7, 0, 0)))
    parquet.write_table(
        pa.table({"in": ["a.png", "absent.png"], "out": ["a.png", "a.png"], "say": ["x", "y"]}),
        tmp_path / "train-0.parquet",
    )
    data = Pairs(path=str(tmp_path), **COLUMNS)
    assert data.sample(0, LEVEL).source[0, 0, 0] == 7
    assert data.header(1).problem == "missing picture file"


def test_saved_splits_are_listed(tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_dict({"say": ["x"]})
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DatasetLayoutError, match=r"holds the splits test, train\. Name one"):
        Pairs(path=str(tmp_path / "saved"), **COLUMNS)


def test_saved_set_without_a_picture_feature_is_refused_with_the_cast(tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_dict({"in": ["a.png"], "out": ["b.png"], "say": ["x"]})
    table.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DatasetLayoutError, match=r"Column 'in' of .*cast_column\(name, datasets\.Image\(\)\)"):
        Pairs(path=str(tmp_path / "saved"), **COLUMNS)
    with pytest.raises(DatasetLayoutError, match=r"lacks the columns text.*found in, out, say"):
        Pairs(path=str(tmp_path / "saved"), **{**COLUMNS, "instruction": "text"})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://datasets/a/b@main", HubSet("a/b", "main")),
        ("hf://datasets/a/b-c@0f1e2d/data/x/", HubSet("a/b-c", "0f1e2d", "data/x")),
        ("hf://datasets/a/b@refs%2Fpr%2F1", HubSet("a/b", "refs/pr/1")),
    ],
)
def test_hub_address_names_set_revision_and_folder(path: str, expected: HubSet) -> None:
    assert parse_hub(path) == expected


@pytest.mark.parametrize("path", ["hf://datasets/a/b", "hf://datasets/a@main", "hf://datasets/a/b@"])
def test_hub_address_without_a_revision_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"hf://datasets/OWNER/NAME@REVISION, where REVISION is a commit hash"):
        Pica100k(path=path)


def test_hub_set_is_downloaded_at_its_revision_and_read_from_its_folder(write_pica, monkeypatch) -> None:
    asked: list[object] = []

    def stand_in(name: str, **arguments: object) -> str:
        asked.append((name, arguments))
        return str(write_pica())

    monkeypatch.setattr("huggingface_hub.snapshot_download", stand_in)
    data = Pica100k(path="hf://datasets/Andrew613/PICA-100K@3a48544")
    assert data.sample(2, LEVEL).instruction == "long 2"
    patterns = ["data/train-*.parquet", "train-*.parquet"]
    expected = {"repo_type": "dataset", "revision": "3a48544", "allow_patterns": patterns}
    assert asked == [("Andrew613/PICA-100K", expected)]
    assert layouts.PREFIX == hub.PREFIX


def test_hub_set_that_cannot_be_had_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DatasetLayoutError, match=r"hf://datasets/a/b@main cannot be downloaded: .*hf auth login"):
        Pica100k(path="hf://datasets/a/b@main")


def test_streamed_rows_are_those_of_the_copied_ones(write_pica) -> None:
    write_pica("data/train-0.parquet", num_rows=3)
    path = write_pica("data/train-1.parquet", num_rows=4, first=3)
    copied, streamed = Pica100k(path=str(path)), Pica100k(path=str(path), streaming=True)
    assert len(streamed) == 7
    for index in (6, 0, 3, 2, 5):
        assert streamed.stored(index, LEVEL) == copied.stored(index, LEVEL)
        assert streamed.header(index) == copied.header(index)


def test_streamed_row_costs_its_row_group_and_no_other(tmp_path: Path, write_pica, monkeypatch) -> None:
    file = write_pica(num_rows=6) / "data/train-00000.parquet"
    parquet.write_table(parquet.read_table(file), file, row_group_size=2)
    read: list[int] = []
    theirs = parquet.ParquetFile.read_row_group

    def counted(self: parquet.ParquetFile, group: int, **options: object) -> object:
        read.append(group)
        return theirs(self, group, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counted)
    rows = RowGroupRows([f"file://{file}"], texts=TEXTS, pictures=PICTURES)
    assert read == []
    for index in (0, 1, 5, 4, 0, 2, 5):
        assert rows.row(index)["explicit_prompt"] == f"long {index}"
        assert rows.origin(index).row == index
    # Two groups are held: the first is still there after the third, and the third is gone after the second.
    assert read == [0, 2, 1, 2]
    copy = pickle.loads(pickle.dumps(rows))
    assert copy.row(3)["explicit_prompt"] == "long 3"
    assert copy.texts("explicit_prompt") == [f"long {i}" for i in range(6)]


def test_files_of_a_remote_folder_are_found_by_name() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for name in ("train-1.parquet", "train-0.parquet", "test-0.parquet"):
        files.pipe(f"/sets/a@main/data/{name}", b"")
    found = list_parquet(files, "/sets/a@main", "memory:/")
    assert found == tuple(f"memory://sets/a@main/data/train-{i}.parquet" for i in (0, 1))
    with pytest.raises(DatasetLayoutError, match=r"holds no data/train-\*\.parquet"):
        list_parquet(files, "/sets/b@main", "memory:/")


def test_streamed_rows_come_through_any_file_system(write_pica) -> None:
    import fsspec

    data = (write_pica(num_rows=4) / "data/train-00000.parquet").read_bytes()
    fsspec.filesystem("memory").pipe("/streamed.parquet", data)
    rows = RowGroupRows(["memory://streamed.parquet"], texts=TEXTS, pictures=PICTURES)
    assert [rows.row(i)["explicit_prompt"] for i in (3, 0)] == ["long 3", "long 0"]
    assert rows.name(3) == "streamed.parquet:3"


def test_streamed_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-0.parquet").write_bytes(b"version https://git-lfs")
    with pytest.raises(DatasetLayoutError, match=r"train-0\.parquet is no readable parquet file"):
        Pica100k(path=str(tmp_path), streaming=True)


def test_streamed_set_without_rows_or_a_column_is_named(write_pica) -> None:
    with pytest.raises(DatasetLayoutError, match="the data set has no rows"):
        Pica100k(path=str(write_pica(num_rows=0)), streaming=True)
    with pytest.raises(DatasetLayoutError, match=r"lacks the columns explicit_prompt"):
        Pica100k(path=str(write_pica(num_rows=1, explicit_prompt=None)), streaming=True)
