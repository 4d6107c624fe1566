"""The run's own record of its numbers."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from physedit.eval_hooks.files import read_json_lines, write_text
from physedit.eval_hooks.hook import EvalReport, MetricChange
from physedit.train.metrics_file import MetricsFile
from physedit.train.results import record_report
from physedit.train.tracker import Wandb


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


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_text(path, "old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*summary\.json'"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def record(folder, *spans: tuple[int, int]) -> Wandb:
    """Logs the steps of each span from its first to its last to one wandb run, and returns the tracker."""
    tracker = Wandb(mode="offline", project="test")
    tracker.start(folder, "run", {"optimizer": {"lr": 0.1}})
    for number, (first, last) in enumerate(spans):
        for step in range(first, last + 1):
            tracker.log(step, {"train/loss": step + number / 10})
    return tracker


def points(folder) -> list[tuple[int, float]]:
    return [(row["trainer/step"], row["train/loss"]) for row in logged(folder)]


def drops(folder) -> list[str]:
    """Returns what wandb's own log says of points that it does not keep."""
    said = (folder / "logs" / "debug-internal.log").read_text().splitlines()
    assert said
    return [line for line in said if "ignoring partial history record" in line]


def test_d15_wandb_keeps_its_run_id_and_every_point_when_a_run_goes_back(tmp_path, monkeypatch):
    """It is stopped after step 12 and goes on from the checkpoint of step 10."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    for span in ((1, 12), (11, 14)):
        record(tmp_path, span).finish({"scenes/physics_acc": 0.5}, exit_code=0)
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    run_id = (tmp_path / "wandb" / "run_id").read_text()
    assert len(folders) == 2
    assert all(run_id in folder.name for folder in folders)
    assert points(folders[0]) == [(step, step) for step in range(1, 13)]
    assert points(folders[1]) == [(step, step) for step in range(11, 15)]
    assert not [line for folder in folders for line in drops(folder)]


def test_d15_points_of_older_steps_are_kept_where_wandb_goes_on_counting(tmp_path, monkeypatch):
    """As with a server, which knows how far the run had come."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    record(tmp_path, (1, 12), (11, 14)).finish({}, exit_code=0)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert points(folder) == [(step, step) for step in range(1, 13)] + [(step, step + 0.1) for step in range(11, 15)]
    assert not drops(folder)


def test_d15_a_point_that_wandb_drops_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = record(tmp_path, (1, 3))
    tracker._run.log({"trainer/step": 1, "train/loss": 9.0}, step=1)
    tracker.finish({}, exit_code=0)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert (1, 9.0) not in points(folder)
    assert drops(folder)


def test_d15_a_start_tells_wandb_what_its_file_has_and_wandb_lacks_and_nothing_twice(tmp_path, monkeypatch):
    """Killed at step 12, the last two of which are done again; wandb's log ends with step 11, or holds nothing."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "checkpoints" / "step_00000010").mkdir(parents=True)
    record(tmp_path, (1, 11)).finish({}, exit_code=0)
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(1, 13):
        file.append(step, {"train/loss": float(step)})
    file.append(10, {"picabench/acc": 0.5, "picabench/psnr": None})
    (first,) = (tmp_path / "wandb").glob("offline-run-*")
    empty = first.with_name(first.name.replace("offline-run-2", "offline-run-1"))
    empty.mkdir()
    log = next(first.glob("*.wandb"))
    (empty / log.name).write_bytes(log.read_bytes()[:7])  # what a kill before the first write leaves

    tracker = record(tmp_path, (11, 14))
    tracker.log(10, {"picabench/acc": 0.5})
    tracker.log(10, {"picabench/acc": 0.75})
    tracker.finish({}, exit_code=0)
    assert not empty.exists()
    assert (tmp_path / "wandb" / f"empty-{empty.name}").is_dir()
    _, second = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert points(second) == [(12, 12.0), (13, 13.0), (14, 14.0)]
    evaluated = [(row["trainer/step"], row["picabench/acc"]) for row in logged(second, "picabench/acc")]
    assert evaluated == [(10, 0.5), (10, 0.75)], "another outcome is another point"


def test_a_run_that_begins_again_is_another_run_of_wandb(tmp_path, monkeypatch):
    """It was never saved: what it did before may have been done with other settings."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    for _ in range(2):
        record(tmp_path, (1, 3)).finish({}, exit_code=0)
        for step in (1, 2, 3):
            MetricsFile(tmp_path / "metrics.jsonl").append(step, {"train/loss": float(step)})
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len({folder.name.rpartition("-")[2] for folder in folders}) == 2
    assert all(points(folder) == [(1, 1.0), (2, 2.0), (3, 3.0)] for folder in folders)


def report_of(step: int, change: float, **about: object) -> EvalReport:
    """Returns a report whose accuracies changed by this much."""
    found = MetricChange(0.5, 0.5 + change, change, None, 4)
    metrics = {"picabench/acc": found, "picabench/acc/Reflection": found}
    return EvalReport("picabench", step, metrics, Path("nowhere"), **about)


def test_late_reports_are_logged_at_their_own_step_and_the_summary_keeps_the_best_change(tmp_path, monkeypatch):
    """The reports of steps 100 and 200 arrive after step 300 was reached; step 200 is the best."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    metrics_file = MetricsFile(tmp_path / "metrics.jsonl")
    tracker = record(tmp_path, (1, 3))
    for step, change in ((300, 0.125), (100, 0.0), (200, 0.25)):
        assert record_report(report_of(step, change), metrics_file, lambda: tracker)
    assert not record_report(report_of(200, 0.25), metrics_file, lambda: tracker)
    unfinished = report_of(400, 0.5, num_questions=8, num_unscored=1)
    assert not record_report(unfinished, metrics_file, lambda: tracker)
    best = tracker._run.summary["picabench/acc_delta"]["max"]
    tracker.finish({"picabench/acc": 0.625}, exit_code=0)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    keys = ("picabench/acc", "picabench/acc_delta", "picabench/acc/Reflection", "picabench/acc_delta/Reflection")
    rows = [(row["trainer/step"], *(row[key] for key in keys)) for row in logged(folder, "picabench/acc")]
    assert rows == [(300, 0.625, 0.125, 0.625, 0.125), (100, 0.5, 0.0, 0.5, 0.0), (200, 0.75, 0.25, 0.75, 0.25)]
    lines = read_json_lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], *(line[key] for key in keys)) for line in lines] == rows
    assert best == 0.25
    assert not drops(folder)


def logged(folder, key="train/loss"):
    """Yields the logged rows with a key of an offline run as wandb's own reader prints them."""
    file = next(folder.glob("*.wandb"))
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for line in output.splitlines():
        row = json.loads(line).get("history", {}).get("item", {})
        if key in row:
            yield row
