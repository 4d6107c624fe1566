import json
from pathlib import Path

import pytest

from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, PromptLevel, collate

COLUMNS = {"source": "before", "target": "after", "instruction": "text", "level": "explicit"}


@pytest.fixture
def folder(tmp_path: Path, png) -> Path:
    for i in range(3):
        (tmp_path / f"in{i}.png").write_bytes(png((i, 0, 0)))
        (tmp_path / f"out{i}.png").write_bytes(png((0, 0, i)))
    return tmp_path


def rows(texts: list[str]) -> list[dict[str, str]]:
    return [{"before": f"in{i}.png", "after": f"out{i}.png", "text": text} for i, text in enumerate(texts)]


def write_jsonl(folder: Path, lines: list[object]) -> None:
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (folder / "metadata.jsonl").write_text(text, encoding="utf-8")


def test_jsonl_rows_pair_the_named_columns(folder: Path) -> None:
    write_jsonl(folder, rows(["plain", "雪 🙂", "café"]))
    data = Pairs(path=str(folder), **COLUMNS)
    samples = [data.sample(i, PromptLevel.EXPLICIT) for i in range(len(data))]
    assert [s.instruction for s in samples] == ["plain", "雪 🙂", "café"]
    assert [s.source[:, 0, 0].tolist() for s in samples] == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert [s.target[:, 0, 0].tolist() for s in samples] == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert [s.sample_id for s in samples] == [f"metadata.jsonl:{i}" for i in range(3)]
    assert data.levels == {PromptLevel.EXPLICIT}


def test_csv_with_byte_order_mark_and_windows_line_ends_is_read_exactly(folder: Path) -> None:
    text = '\ufeffbefore,after,text\r\nin0.png,out0.png,"one, ""two"""\r\nin1.png,out1.png,雪\r\n'
    (folder / "metadata.csv").write_bytes(text.encode())
    data = Pairs(path=str(folder), **COLUMNS)
    assert [data.sample(i, PromptLevel.EXPLICIT).instruction for i in range(2)] == ['one, "two"', "雪"]


def test_line_in_another_encoding_is_named(folder: Path) -> None:
    (folder / "metadata.csv").write_bytes(b"before,after,text\nin0.png,out0.png,it\x92s\nin1.png,out1.png,fine\n")
    data = Pairs(path=str(folder), **COLUMNS)
    assert [data.header(row).problem for row in (0, 1)] == ["text is not UTF-8", None]
    with pytest.raises(DatasetRowError, match=r"Line 2 of .*metadata\.csv is not UTF-8: byte 0x92 in column 'text'"):
        data.sample(0, PromptLevel.EXPLICIT)


def test_nearly_matching_file_name_is_no_match_and_the_one_asked_for_is_named(folder: Path) -> None:
    """A10: a picture is never paired by the beginning of its name."""
    (folder / "in1.png").rename(folder / "in1_.png")
    write_jsonl(folder, rows(["a", "b", "c"]))
    data = Pairs(path=str(folder), **COLUMNS)
    assert [data.header(row).problem for row in range(3)] == [None, "missing picture file", None]
    with pytest.raises(DatasetRowError, match=r"'before' in .*row 1 names the picture 'in1\.png'.*must be exact"):
        data.sample(1, PromptLevel.EXPLICIT)
    (folder / "in1_.png").rename(folder / "in1.png")
    assert [data.sample(row, PromptLevel.EXPLICIT).source[0, 0, 0].item() for row in range(3)] == [0, 1, 2]


def test_one_source_fewer_is_found_from_headers_and_named(folder: Path) -> None:
    """A11: pairs are made by name, so a missing picture costs its own row and no other."""
    (folder / "in2.png").unlink()
    write_jsonl(folder, rows(["a", "b", "c"]))
    data = Pairs(path=str(folder), **COLUMNS)
    assert [data.header(row).problem for row in range(3)] == [None, None, "missing picture file"]
    with pytest.raises(DatasetRowError, match=r"in2\.png"):
        data.stored(2, PromptLevel.EXPLICIT)
    assert data.sample(1, PromptLevel.EXPLICIT).target[2, 0, 0] == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [(5, "prompt is no text"), (["a"], "prompt is no text"), (None, "blank prompt"), (" ", "blank prompt")],
)
def test_instruction_that_is_no_text_is_named(folder: Path, text: object, reason: str) -> None:
    write_jsonl(folder, [*rows(["a"]), {"before": "in1.png", "after": "out1.png", "text": text}])
    data = Pairs(path=str(folder), **COLUMNS)
    assert [data.header(row).problem for row in (0, 1)] == [None, reason]
    with pytest.raises(DatasetRowError, match=r"'text' in .*row 1") as caught:
        data.stored(1, PromptLevel.EXPLICIT)
    assert caught.value.reason == reason


def test_row_that_lacks_a_column_is_a_row_with_a_problem(folder: Path) -> None:
    write_jsonl(folder, [*rows(["a"]), {"before": "in1.png", "aftr": "out1.png", "text": "b"}])
    data = Pairs(path=str(folder), **COLUMNS)
    assert [data.header(row).problem for row in (0, 1)] == [None, "no target picture"]


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_table_without_a_column_is_refused_with_the_columns_it_has(folder: Path, name: str) -> None:
    """A23: a set never loads with its pictures alone, or with blank prompts."""
    lines = {
        "metadata.jsonl": '{"before": "in0.png", "aftr": "out0.png"}\n',
        "metadata.csv": "before,aftr\nin0.png,x\n",
    }
    (folder / name).write_text(lines[name])
    with pytest.raises(
        DatasetLayoutError, match=r"lacks the columns text, after.*found before, aftr.*did you mean 'aftr'"
    ):
        Pairs(path=str(folder), **COLUMNS)


@pytest.mark.parametrize("line", ["{not json", "[1, 2]"])
def test_line_that_is_no_object_is_named(folder: Path, line: str) -> None:
    (folder / "metadata.jsonl").write_text(line)
    with pytest.raises(DatasetRowError, match="Line 1 of"):
        Pairs(path=str(folder), **COLUMNS)


def test_parquet_columns_under_other_names_are_read(write_pica) -> None:
    data = Pairs(
        path=str(write_pica()),
        source="tgt_img",
        target="src_img",
        instruction="explicit_prompt",
        level="explicit",
        law="law",
    )
    sample = data.sample(4, PromptLevel.EXPLICIT)
    assert sample.source[:, 0, 0].tolist() == [0, 0, 4]
    assert (sample.law, sample.operation) == ("Reflection", None)


def test_missing_parquet_column_is_named(write_pica) -> None:
    with pytest.raises(DatasetLayoutError, match=r"lacks the columns before, after"):
        Pairs(path=str(write_pica()), **{**COLUMNS, "instruction": "explicit_prompt"})


def test_one_column_for_two_purposes_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="before are named for two purposes"):
        Pairs(path=str(folder), **{**COLUMNS, "target": "before"})


def test_unknown_level_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.level is 'detailed'"):
        Pairs(path=str(folder), **{**COLUMNS, "level": "detailed"})


def test_references_are_read_beside_the_source_and_may_be_empty(tmp_path: Path, png) -> None:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png((number, 0, 0)))
    rows = [
        {"a": "0.png", "b": "1.png", "say": "x", "more": "2.png", "most": "3.png"},
        {"a": "0.png", "b": "1.png", "say": "x", "more": "2.png", "most": None},
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = Pairs(
        path=str(tmp_path), source="a", target="b", instruction="say", level="explicit", references=["more", "most"]
    )
    full, partial = (data.sample(row, PromptLevel.EXPLICIT) for row in (0, 1))
    assert [int(picture[0, 0, 0]) for picture in full.references] == [2, 3]
    assert [int(picture[0, 0, 0]) for picture in partial.references] == [2]
    assert data.max_references == 2
    assert [len(pictures) for pictures in collate([full, full]).given] == [3, 3]
    with pytest.raises(DatasetRowError, match=r"equally many references.*Set micro_batch=1"):
        collate([full, partial])
