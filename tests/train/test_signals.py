"""Files that ask something of a run: those of an earlier start are removed with a word, newer ones are honoured."""

import logging
import os
from pathlib import Path

import psutil
import pytest

from physedit.train.signals import SAVE_FILE, STOP_FILE, Request, RequestFiles


@pytest.mark.parametrize(("name", "request_"), [(SAVE_FILE, Request.SAVE), (STOP_FILE, Request.STOP)])
def test_a_file_that_is_touched_while_the_run_starts_is_honoured(name: str, request_: Request, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert RequestFiles(tmp_path).asked() is request_
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", [SAVE_FILE, STOP_FILE])
def test_a_file_of_an_earlier_start_is_removed_and_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    path.touch()
    before = psutil.Process().create_time() - 60
    os.utime(path, (before, before))
    with caplog.at_level(logging.WARNING):
        files = RequestFiles(tmp_path)
    assert str(path) in caplog.text
    assert not path.exists()
    assert files.asked() is Request.NONE
