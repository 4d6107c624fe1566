"""A line is added whole or not at all, and a full disk is told by file and content."""

import json
import re
from pathlib import Path

import pytest
from accelerate import Accelerator
from tests.support.full_disk import fill_disk

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DroppedRow, Origin, RowName
from physedit.train.dropped import DroppedRows
from physedit.train.guarded import guarded
from physedit.train.metrics_file import MetricsFile
from physedit.train.record_lines import RecordNotWritten, add_line

LINE = '{"step": 1, "train/loss": 0.5}\n'


def test_a_line_that_does_not_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    add_line(path, {"step": 1, "train/loss": 0.5}, "the numbers of step 1")
    with monkeypatch.context() as patch:
        fill_disk(patch, path.name, len(LINE) + 9)
        with pytest.raises(RecordNotWritten):
            add_line(path, {"step": 2, "train/loss": 0.25}, "the numbers of step 2")
    assert path.read_text() == LINE
    add_line(path, {"step": 2}, "the numbers of step 2")
    assert path.read_text() == LINE + '{"step": 2}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_disk_that_is_full_is_told_with_file_content_room_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: MetricsFile(path).append(5, {"train/loss": 0.5}))
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"{path} could not take the numbers of step 5: [Errno 28] No space left on device." in said
    assert re.search(r"\d+ MiB are free at \S+\. Finished checkpoints .* free space .* run it again", said)


def test_a_dropped_row_that_cannot_be_recorded_is_told_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start goes on from a checkpoint before that step, and meets the row again."""
    path = tmp_path / "dropped.jsonl"
    dropped = DroppedRows(100, 1.0)
    dropped.start(path, 0, Accelerator(cpu=True))
    rows = [DroppedRow(n, RowName(f"a:{n}", Origin("a", n)), RowProblem.DAMAGED, "cut") for n in range(2)]
    dropped.add([(1, rows[0])])
    kept = path.read_text()
    with monkeypatch.context() as patch:
        fill_disk(patch, path.name, len(kept) + 9)
        with pytest.raises(
            RecordNotWritten, match=r"dropped\.jsonl could not take the row a:1 that step 7 drops: .*28"
        ):
            dropped.add([(7, rows[1])])
    assert path.read_text() == kept


def test_half_a_character_is_added_as_its_escape(tmp_path: Path) -> None:
    add_line(tmp_path / "dropped.jsonl", {"sample_id": "a\udce4"}, "a row")
    assert json.loads((tmp_path / "dropped.jsonl").read_text(encoding="utf-8")) == {"sample_id": "a\udce4"}
