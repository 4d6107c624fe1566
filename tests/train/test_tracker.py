"""The run's own record of its numbers."""

import json
import subprocess
import sys

import pytest

from physedit.eval_hooks.files import read_json_lines, write_text
from physedit.train.tracker import MetricsFile, Wandb


def test_rewind_drops_what_a_resumed_run_writes_again(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        file.append(step, {"train/loss": step / 10})
    file.append(2, {"scenes/physics_acc": 0.5})
    file.rewind(2, ["scenes"])
    kept = list(read_json_lines(tmp_path / "metrics.jsonl"))
    assert kept == [{"step": 1, "train/loss": 0.1}, {"step": 2, "train/loss": 0.2}]


def test_a_line_cut_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": 0.5}\n{"step": 2, "tra')
    MetricsFile(path).rewind(5, [])
    assert path.read_text() == '{"step": 1, "train/loss": 0.5}\n'


def test_rewinding_before_the_first_line_makes_an_empty_file(tmp_path):
    MetricsFile(tmp_path / "metrics.jsonl").rewind(0, [])
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_number_that_is_not_finite_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train/loss is nan"):
        MetricsFile(tmp_path / "metrics.jsonl").append(1, {"train/loss": float("nan")})


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "summary.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_wandb_keeps_its_run_id_and_loses_no_point_when_a_run_goes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    for first, last in ((1, 4), (3, 6)):  # stopped after 4, resumed from the checkpoint of step 2
        tracker = Wandb(mode="offline", project="test")
        tracker.start(tmp_path, "run", {"optimizer": {"lr": 0.1}})
        for step in range(first, last + 1):
            tracker.log(step, {"train/loss": 1.0 / step})
        tracker.finish({"scenes/physics_acc": 0.5}, exit_code=0)
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    run_id = (tmp_path / "wandb" / "run_id").read_text()
    assert len(folders) == 2
    assert all(run_id in folder.name for folder in folders)
    steps = [record["step"] for folder in folders for record in logged(folder)]
    assert steps == [1, 2, 3, 4, 3, 4, 5, 6]


def logged(folder):
    """Yields the logged rows of an offline run as wandb's own reader prints them."""
    file = next(folder.glob("*.wandb"))
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for line in output.splitlines():
        row = json.loads(line).get("history", {}).get("item", {})
        if "train/loss" in row:
            yield row
