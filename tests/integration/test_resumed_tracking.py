"""A run that was killed and stopped: metrics.jsonl and wandb have each of its steps once, in every way of reading."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support import signalled_train
from tests.support.runs import smoke_overrides
from tests.support.wandb_server import KEY, wandb_server

from physedit.eval_hooks.files import read_json_lines
from physedit.train.comparing import CompareRequest, compare
from physedit.train.wandb_log import read_log

SETTINGS = (
    "tracker=wandb", "num_steps=12", "log_every=1", "checkpoint.every=4", "eval=scenes", "eval.scenes.num_steps=1",
    "eval.scenes.limit=2", "eval_steps=[4]",
)  # fmt: skip
STEPS = list(range(1, 13))
SAVED_AT, KILLED_AT, STOPPED_AT = 4, 6, 9
EVALUATED = [0, SAVED_AT, 12]
OFTEN = {"WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "0.05"}
"""Seconds between wandb's writes to its log, which are 15 by themselves: what it was told last is in it."""


def start(world: Path, root: Path, signal_at: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    given = [each for each in smoke_overrides(world, root, "run", SETTINGS) if each != "tracker=none"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SIGNAL_AT": signal_at, "WANDB_SILENT": "true", **variables}
    # That of a client in this process, which would hold a killed run as one in use.
    environment.pop("WANDB_SERVICE", None)
    command = [sys.executable, str(Path(signalled_train.__file__)), *given]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def logs_of(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*"))


def history_of(folders: list[Path]) -> list[dict[str, Any]]:
    """Returns the rows of all logs, as wandb's own reader tells them."""
    logs = [read_log(file) for folder in folders for file in folder.glob("*.wandb")]
    return [dict(row) for log in logs if log is not None for row in log.rows]


def told(rows: list[dict[str, Any]], key: str, step: str = "trainer/step") -> list[tuple[int, Any]]:
    return sorted((row[step], row[key]) for row in rows if key in row)


@pytest.mark.slow
def test_d15_a_run_killed_and_stopped_has_every_step_once_in_wandb_and_in_its_file(world: Path, tmp_path: Path) -> None:
    """Steps of the killed start that are done again are in wandb's log of it."""
    run = tmp_path / "run"
    assert start(world, tmp_path, f"SIGKILL:{KILLED_AT}", **OFTEN).returncode == -signal.SIGKILL
    before = [step for step, _ in told(history_of(logs_of(run)), "train/loss")]
    assert max(before) > SAVED_AT, "else this test shows nothing"
    stopped = start(world, tmp_path, f"SIGTERM:{STOPPED_AT}")
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert f"step_{SAVED_AT:08d}" in stopped.stderr, "it goes on from before what the killed start had done"
    ended = start(world, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(logs_of(run)) == 3

    lines = [dict(line) for line in read_json_lines(run / "metrics.jsonl")]
    losses = told(lines, "train/loss", "step")
    assert [step for step, _ in losses] == STEPS
    rows = history_of(logs_of(run))
    assert told(rows, "train/loss") == losses
    for key in ("scenes/physics_acc", "scenes/physics_acc_delta"):
        assert told(rows, key) == told(lines, key, "step")
        assert [step for step, _ in told(rows, key)] == EVALUATED
    for key in ("scenes/panel", "scenes/answers"):
        shown = Counter(row["trainer/step"] for row in rows if f"{key}._type" in row)
        assert shown
        assert shown == dict.fromkeys(shown, 1)
    assert {log.name.rpartition("-")[2] for log in logs_of(run)} == {(run / "wandb" / "run_id").read_text()}

    with wandb_server() as server:
        command = [sys.executable, "-m", "wandb", "sync", *map(str, logs_of(run))]
        environment = os.environ | {"WANDB_BASE_URL": server.base_url, "WANDB_API_KEY": KEY}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        (sent,) = server.runs.values()
        assert sorted(sent.points("train/loss")) == losses
        assert sorted(sent.points("scenes/physics_acc")) == told(lines, "scenes/physics_acc", "step")
        assert sent.is_complete
    comparison, _ = compare(CompareRequest((run / "wandb",), out=tmp_path / "compared", page=False))
    (compared,) = comparison.runs
    assert list(compared.curves["train/loss"]) == losses
