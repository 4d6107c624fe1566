"""Rows that cannot be used: each named once, by file and in the log, and too many stop the run."""

import json
import logging
from pathlib import Path

import pytest
from accelerate import Accelerator

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DroppedRow, Origin, RowName
from physedit.eval_hooks.files import DamagedFileError
from physedit.train.dropped import NUM_WARNINGS, DroppedRows, TooManyDropped


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def row(number: int) -> DroppedRow:
    return DroppedRow(number, RowName(f"a:{number}", Origin("a.parquet", number)), RowProblem.DAMAGED, "cut off")


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_row_has_one_line_with_the_step_that_met_it_first(tmp_path: Path, accelerator: Accelerator) -> None:
    dropped, path = DroppedRows(100, 0.1), tmp_path / "dropped.jsonl"
    dropped.start(path, 0, accelerator)
    dropped.add([(5, row(2)), (4, row(7)), (6, row(7))])
    dropped.add([(9, row(2)), (9, row(1))])
    assert [(line["step"], line["sample_id"]) for line in lines_of(path)] == [(4, "a:7"), (5, "a:2"), (9, "a:1")]
    assert lines_of(path)[0] == {
        "step": 4, "sample_id": "a:7", "file": "a.parquet", "row": 7, "reason": "damaged picture", "message": "cut off",
    }  # fmt: skip
    assert len(dropped) == 3


def test_resumed_run_knows_the_rows_up_to_its_step_and_forgets_later_ones(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    path = tmp_path / "dropped.jsonl"
    first = DroppedRows(100, 0.1)
    first.start(path, 0, accelerator)
    first.add([(0, row(0)), (4, row(1)), (8, row(2))])
    resumed = DroppedRows(100, 0.1)
    resumed.start(path, 4, accelerator)
    assert len(resumed) == 2
    resumed.add([(0, row(0)), (8, row(2))])
    assert [line["sample_id"] for line in lines_of(path)] == ["a:0", "a:1", "a:2"]
    again = DroppedRows(100, 0.1)
    again.start(path, 0, accelerator)
    assert (len(again), lines_of(path)) == (0, [])


def test_share_that_is_allowed_may_be_reached_and_not_passed(tmp_path: Path, accelerator: Accelerator) -> None:
    dropped = DroppedRows(200, 0.01)
    dropped.start(tmp_path / "dropped.jsonl", 0, accelerator)
    dropped.add([(1, row(3)), (2, row(4))])
    with pytest.raises(TooManyDropped, match=r"3 of 200 rows .* max_dropped_share=0.01 allows: a:3, a:4, a:9\. "):
        dropped.add([(3, row(9))])
    assert len(lines_of(tmp_path / "dropped.jsonl")) == 3


def test_no_share_stops_at_the_first_and_names_it(tmp_path: Path, accelerator: Accelerator) -> None:
    dropped = DroppedRows(10**6, 0.0)
    dropped.start(tmp_path / "dropped.jsonl", 0, accelerator)
    dropped.add([])
    with pytest.raises(TooManyDropped, match=r"1 of 1000000 rows cannot be used.* a:3"):
        dropped.add([(1, row(3))])


def test_the_first_ten_are_warned_of_and_the_file_has_all(
    tmp_path: Path, accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    dropped = DroppedRows(100, 1.0)
    dropped.start(tmp_path / "dropped.jsonl", 0, accelerator)
    with caplog.at_level(logging.WARNING, logger="physedit.train.dropped"):
        dropped.add([(1, row(number)) for number in range(30)])
    assert len(caplog.messages) == NUM_WARNINGS + 1
    assert caplog.messages[0] == "Row a:0 is dropped: cut off"
    assert "Further dropped rows" in caplog.messages[-1]
    assert len(lines_of(tmp_path / "dropped.jsonl")) == 30


def test_a_run_without_any_row_stops_whatever_share_is_allowed(tmp_path: Path, accelerator: Accelerator) -> None:
    dropped = DroppedRows(3, 1.0)
    dropped.start(tmp_path / "dropped.jsonl", 0, accelerator)
    dropped.add([(1, row(0)), (1, row(2))])
    with pytest.raises(TooManyDropped, match=r"All 3 rows are dropped.*a:0, a:2, a:1"):
        dropped.add([(2, row(1))])


@pytest.mark.parametrize("line", ["{}", '{"step": 1}', '{"step": "one", "sample_id": "a:1"}', "[]"])
def test_a_damaged_file_is_refused_with_what_deleting_it_means(
    tmp_path: Path, accelerator: Accelerator, line: str
) -> None:
    path = tmp_path / "dropped.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DamagedFileError, match=r"dropped\.jsonl, line 1 is damaged: .*counts the rows that it drops"):
        DroppedRows(100, 0.1).start(path, 4, accelerator)
