"""What the command line says of an error that is not the settings' fault."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from physedit.train.guarded import guarded


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "abc"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", ""),
        ("RANK", "zz"),
        ("RANK", "-1"),
        ("LOCAL_RANK", "1.5"),
    ],
)
def test_rank_variables_that_no_launcher_sets_are_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    code, text = said(AssertionError("the action was begun"), capsys)
    assert code == 2
    assert f"{name}={value!r} in the environment is no whole number" in text
    assert "unset it" in text
