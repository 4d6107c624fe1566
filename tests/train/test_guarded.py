"""What the command line says of an error that is not the settings' fault."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from physedit.train.cli import guarded


def said(error: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Returns the exit code and the words of a command that ends with ``error``."""

    def fails() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        guarded(fails)
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_a_full_disk_is_told_with_file_and_free_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no such folder" / "a.json"
    code, text = said(OSError(errno.ENOSPC, "No space left on device", str(path)), capsys)
    assert code == 1
    assert str(path) in text
    assert f"MiB are free at {tmp_path})" in text
    assert "free space" in text


def test_tensors_that_cannot_be_read_or_written_come_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(SafetensorError("Error while serializing"), capsys)
    assert code == 1
    assert "free space if the disk is full" in text
