"""The runner of sweeps, with a stand-in for the trainer: F13, restarts, early stops, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from physedit.launch.hyperband import Hyperband
from physedit.launch.plan import LaunchError
from physedit.launch.sweep_file import Choice, Metric, Parameters, SweepFile
from physedit.launch.sweep_runner import SweepPlan, run_sweep
from physedit.launch.sweep_trials import TRIALS_FILE, TrialState, failed_evaluations_of, read_trials, values_of

TRIAL = """
import json, pathlib, signal, sys, time
folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
with (folder / "starts").open("a") as file:
    file.write("start ")
def log(value):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, "scenes/acc": value}) + "\\n")
def wait():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (folder / "ready").touch()
    while True:
        time.sleep(0.05)
if what == "raise":
    print("before the trace")
    raise RuntimeError("this trial cannot be")
if what == "once" and not (folder / "again").exists():
    (folder / "again").touch()
    sys.exit(3)
if what == "judge":
    failed = {"hook": "scenes", "step": 4, "error": "JudgeUnavailable: gone"}
    (folder / "summary.json").write_text(json.dumps({"failed_evaluations": [failed]}))
if what == "wait" and not (folder / "again").exists():
    (folder / "again").touch()
    wait()
if what.startswith("slow"):
    log(float(what[4:]))
    log(float(what[4:]))
    wait()
log(float(what) if what[0].isdigit() else 0.5)
"""


def planned(folder: Path, values: Sequence[str], *, stop: bool = False, early: Hyperband | None = None) -> SweepPlan:
    sweep = SweepFile(
        path=Path("a.yaml"), name="a", method="grid", metric=Metric("scenes/acc", "maximize"),
        parameters={"what": Choice(tuple(values))}, command=(), program=None, early_stop=early, run_cap=None,
    )  # fmt: skip
    return SweepPlan(
        sweep=sweep, folder=folder, num_trials=len(values), seed=0, definition={"values": list(values)},
        command=lambda trial, given: [sys.executable, "-c", TRIAL, str(folder / trial), str(given["what"])],
        environment={}, stops_at_first_failure=stop,
    )  # fmt: skip


def starts(folder: Path) -> list[int]:
    return [path.read_text().count("start") for path in sorted(folder.glob("trial_*/starts"))]


def test_the_first_of_three_fails_with_its_trace_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO"):
        record, code = run_sweep(planned(tmp_path, ["raise", "0.3", "0.4"]))
    assert code == 1
    assert record.summary() == "2 of 3 finished, 1 of 3 failed"
    log = (tmp_path / "trial_001/launch/trial.log").read_text()
    assert "before the trace" in log
    assert "RuntimeError: this trial cannot be" in log
    (shown,) = (each.getMessage() for each in caplog.records if each.levelname == "ERROR")
    assert "trial_001 failed with exit code 1" in shown
    assert "RuntimeError: this trial cannot be" in shown
    content = json.loads((tmp_path / TRIALS_FILE).read_text())
    rows = [
        (row["trial"], row["parameters"], row["state"], row["exit_code"], row["metric"]) for row in content["trials"]
    ]
    assert rows == [
        ("trial_001", {"what": "raise"}, "failed", 1, None),
        ("trial_002", {"what": "0.3"}, "finished", 0, 0.3),
        ("trial_003", {"what": "0.4"}, "finished", 0, 0.4),
    ]


def test_it_stops_at_the_first_failure_if_asked(tmp_path: Path):
    record, code = run_sweep(planned(tmp_path, ["0.3", "raise", "0.4"], stop=True))
    assert code == 1
    assert record.summary() == "1 of 3 finished, 1 of 3 failed, 1 of 3 not started"
    assert starts(tmp_path) == [1, 1]


def test_a_restart_runs_what_failed_and_nothing_that_finished(tmp_path: Path):
    plan = planned(tmp_path, ["0.3", "once", "0.4"])
    assert run_sweep(plan)[1] == 1
    record, code = run_sweep(plan)
    assert (code, record.summary()) == (0, "3 of 3 finished")
    assert starts(tmp_path) == [1, 2, 1]
    assert (tmp_path / "trial_002/launch/trial.log").read_text().count("$ ") == 2  # both starts
    assert run_sweep(plan)[1] == 0
    assert starts(tmp_path) == [1, 2, 1]


def test_a_failed_evaluation_is_said_and_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    record, code = run_sweep(planned(tmp_path, ["judge", "0.4"]))
    assert (code, record.summary()) == (0, "2 of 2 finished, 1 with a failed evaluation")
    assert record.trials[0].failed_evaluations == ("scenes at step 4: JudgeUnavailable: gone",)
    assert "an evaluation failed: scenes at step 4" in caplog.text


def test_a_hopeless_trial_is_stopped_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("physedit.launch.sweep_runner.SECONDS_BETWEEN_LOOKS", 0.05)
    early = Hyperband((1,), eta=2.0)
    plan = planned(tmp_path, ["0.5", "slow0.4", "0.6"], early=early)
    record, code = run_sweep(plan)
    assert (code, record.summary()) == (0, "2 of 3 finished, 1 of 3 stopped early")
    assert (record.trials[1].exit_code, record.trials[1].metric) == (143, 0.4)
    assert run_sweep(plan)[1] == 0
    assert starts(tmp_path) == [1, 1, 1]


def test_another_sweep_or_a_second_runner_may_not_use_the_folder(tmp_path: Path):
    run_sweep(planned(tmp_path, ["0.3"]))
    with pytest.raises(LaunchError, match="with other values"):
        run_sweep(planned(tmp_path, ["0.4"]))
    import fcntl

    with (tmp_path / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LaunchError, match="Another process is running the sweep"):
            run_sweep(planned(tmp_path, ["0.3"]))


def test_a_damaged_record_is_named(tmp_path: Path):
    (tmp_path / TRIALS_FILE).write_text("{}")
    with pytest.raises(LaunchError, match=r"trials\.json is damaged"):
        run_sweep(planned(tmp_path, ["0.3"]))


@pytest.mark.parametrize("content", [
    {"definition": [], "trials": []},
    {"definition": {}, "trials": [{"trial": "a", "parameters": [], "run_folder": "a", "log": "a", "state": "failed",
                                   "failed_evaluations": []}]},
    [],
])  # fmt: skip
def test_a_record_of_another_form_is_named(tmp_path: Path, content: object):
    (tmp_path / TRIALS_FILE).write_text(json.dumps(content))
    with pytest.raises(LaunchError, match=r"trials\.json is damaged"):
        read_trials(tmp_path, {"values": ["0.3"]})


def test_lines_without_a_number_are_passed(tmp_path: Path):
    lines = [
        b"[1]",
        b"7",
        b'{"m": 0.5}',
        b'{"m": "text"}',
        b'{"m": true}',
        b"\xff\xfe",
        b'{"m": [1]}',
        b'{"m": 2}',
        b'{"m"',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert values_of(tmp_path, Metric("m", "maximize")) == (0.5, 2.0)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b'{"failed_evaluations": 3}', b'{"failed_evaluations": [{}]}']
)
def test_a_damaged_summary_is_told_as_an_evaluation_that_failed(tmp_path: Path, content: bytes):
    (tmp_path / "summary.json").write_bytes(content)
    (said,) = failed_evaluations_of(tmp_path)
    assert "summary.json cannot be read" in said


def test_a_program_that_is_gone_fails_its_trial_and_the_others_go_on(tmp_path: Path):
    plan = planned(tmp_path, ["0.3", "0.4"])
    real = plan.command

    def command(trial: str, given: Parameters) -> Sequence[str]:
        return ["no/such/program"] if trial == "trial_001" else real(trial, given)

    record, code = run_sweep(replace(plan, command=command))
    assert (code, record.summary()) == (1, "1 of 2 finished, 1 of 2 failed")
    assert record.trials[0].exit_code == 127
    assert "no/such/program cannot be started" in (tmp_path / "trial_001/launch/trial.log").read_text()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="--out"):
        run_sweep(planned(tmp_path / "file" / "sweep", ["0.3"]))


RUNNER = """
import sys
from pathlib import Path
from tests.launch.test_sweep_runner import planned, run_sweep
sys.exit(run_sweep(planned(Path(sys.argv[1]), ["0.3", "wait", "0.4"]))[1])
"""


@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGTERM, 143, "interrupted"), (signal.SIGKILL, -9, "running")]
)
def test_a_sweep_that_is_stopped_goes_on_with_the_trial_it_was_at(tmp_path: Path, number: int, code: int, state: str):
    root = Path(__file__).parents[2]
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'src'}"},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "trial_002/ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    runner.send_signal(number)
    assert runner.wait(timeout=30) == code
    rows = json.loads((tmp_path / TRIALS_FILE).read_text())["trials"]
    assert [row["state"] for row in rows] == ["finished", state]
    record, after = run_sweep(planned(tmp_path, ["0.3", "wait", "0.4"]))
    assert (after, [trial.state for trial in record.trials]) == (0, [TrialState.FINISHED] * 3)
    assert starts(tmp_path) == [1, 2, 1]
