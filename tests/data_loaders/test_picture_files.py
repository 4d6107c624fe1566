import io
import os
from pathlib import Path

import pytest
from PIL import Image

from physedit.data_loaders import picture_files
from physedit.data_loaders.images import read_rgb, shown_size
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.rows import PictureFile
from physedit.data_loaders.sample import DatasetRowError, Origin


def reason_of(path: Path) -> str | None:
    with pytest.raises(DatasetRowError) as caught:
        PictureFile(path, "Column 'source' in t.jsonl, row 0").read()
    with pytest.raises(DatasetRowError) as again:
        read_rgb(path)
    assert caught.value.reason == again.value.reason
    return caught.value.reason


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    assert reason_of(tmp_path / "a.png") == RowProblem.UNREADABLE
    with pytest.raises(DatasetRowError, match="it is a named pipe, no file"):
        PictureFile(tmp_path / "a.png", "Column 'source'").open()


def test_a_device_is_refused() -> None:
    assert reason_of(Path("/dev/zero")) == RowProblem.UNREADABLE


def test_no_such_name_and_a_folder_are_missing_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("none.png", "folder", "none/a.png", "a" * 300, "null\0sign"):
        assert reason_of(tmp_path / name) == RowProblem.MISSING_FILE


def test_a_file_that_may_not_be_read_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(picture_files, "_opened_at_once", refuse)
    assert reason_of(tmp_path / "a.png") == RowProblem.NOT_READABLE


def test_a_fault_of_the_disk_is_not_called_a_broken_picture() -> None:
    class Faulty(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(DatasetRowError, match="Input/output error") as caught:
        shown_size(Faulty(b"\x89PNG"), Origin("a.png", 0))
    assert caught.value.reason == RowProblem.NOT_READABLE


def test_a_picture_is_read_as_it_was(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "a.png")
    assert PictureFile(tmp_path / "a.png", "").read() == (tmp_path / "a.png").read_bytes()
    assert read_rgb(tmp_path / "a.png")[:, 1, 2].tolist() == [1, 2, 3]
