import errno
import json
from pathlib import Path

import pytest

from physedit.eval_hooks.files import (
    DamagedFileError,
    json_line,
    open_journal,
    read_json,
    read_json_lines,
    write_json,
    write_json_lines,
    write_text,
)


def test_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_json_lines(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b", "\r"])
def test_text_with_another_line_separator_is_one_line(tmp_path: Path, separator: str) -> None:
    row = {"raw": f"yes{separator}it is"}
    (tmp_path / "a.jsonl").write_text(json_line(row) * 2, encoding="utf-8")
    assert read_json_lines(tmp_path / "a.jsonl") == [row, row]


def test_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert read_json_lines(tmp_path / "a.jsonl") == []


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"a": 1}\njunk\n{"a": 2}\n', r"line 2 is damaged: not JSON"),
        (b'{"a": 1}\n[]\n', r"line 2 is damaged: expected a JSON object, found list"),
        (b'{"a": 1}\n{"b": 1}\n', r"line 2 is damaged: a missing, found b"),
        (b"\xff\xfe\n", r"is damaged: not UTF-8"),
    ],
)
def test_damaged_lines_are_named_with_the_remedy(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DamagedFileError, match=rf"a\.jsonl.*{found}.*Delete the file to redo it"):
        read_json_lines(tmp_path / "a.jsonl", required=["a"])


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a"', b"\xff"])
def test_damaged_json_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"a\.json is damaged.*Delete the file"):
        read_json(tmp_path / "a.json")


def test_a_full_disk_is_told_with_the_files_name_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"\[Errno 28\] No space left on device: '.*a\.json'"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_half_a_character_is_written_as_its_escape(tmp_path: Path) -> None:
    row = {"raw": json.loads('"bad \\ud83d\\\\ and é"')}
    write_json(tmp_path / "a.json", row)
    write_json_lines(tmp_path / "a.jsonl", [row])
    with open_journal(tmp_path / "a.jsonl") as journal:
        journal.write(json_line(row))
    write_text(tmp_path / "a.html", row["raw"])
    assert read_json(tmp_path / "a.json") == row
    assert read_json_lines(tmp_path / "a.jsonl") == [row, row]
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == "bad \\ud83d\\ and é"
