"""An online run of wandb's own client against a server that answers, goes away, or says nothing."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import wandb
from tests.support.runs import metrics_of, smoke_overrides
from tests.support.wandb_server import WandbServer
from typer.testing import CliRunner

from physedit.train.cli import app
from physedit.train.config import ConfigError
from physedit.train.events import RunEvents
from physedit.train.metrics_file import MetricsFile
from physedit.train.tracker import Wandb

STEPS = list(range(1, 9))


def train(world: Path, root: Path, *more: str) -> int:
    given = [*smoke_overrides(world, root, "run", ()), "tracker=wandb", "tracker.mode=online", "log_every=1", *more]
    given.remove("tracker=none")
    done = CliRunner().invoke(app, ["train", *given])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code


def at_step(step: int, monkeypatch: pytest.MonkeyPatch, action) -> None:
    """Has something happen once the trainer has logged ``step``."""
    log = RunEvents.log

    def then(self, at, *arguments):
        log(self, at, *arguments)
        if at == step:
            action()

    monkeypatch.setattr(RunEvents, "log", then)


def send_as_told(said: str, cwd: Path) -> Path:
    """Types the command that the log names; returns the folder that it sends."""
    (command,) = re.findall(r"wandb (sync .*)", said)
    words = command.split(" (")[0].split()
    subprocess.run([sys.executable, "-m", "wandb", *words], check=True, timeout=60, cwd=cwd, capture_output=True)
    return Path(words[-1])


def test_an_online_run_arrives_whole(server: WandbServer, world: Path, tmp_path: Path):
    assert train(world, tmp_path, "tracker.project=physics") == 0
    (run,) = server.runs.values()
    assert run.name == (tmp_path / "run" / "wandb" / "run_id").read_text()
    told = {key: run.about[key] for key in ("displayName", "project", "jobType")}
    assert told == {"displayName": "run", "project": "physics", "jobType": "train"}
    assert run.config["num_steps"] == 8
    written = [(line["step"], line["train/loss"]) for line in metrics_of(tmp_path / "run") if "train/loss" in line]
    assert [step for step, _ in written] == STEPS
    assert run.points("train/loss") == written
    assert run.num_rows_sent == len(run.history)
    assert (run.is_complete, run.exit_code) == (True, 0)


@pytest.mark.parametrize("loss", ["cut", "hang"])
def test_a_server_that_is_lost_in_the_middle_ends_no_run_and_gets_the_rest_later(
    server: WandbServer, world: Path, tmp_path: Path, monkeypatch, caplog, loss: str
):
    at_step(4, monkeypatch, getattr(server, loss))
    begin = time.monotonic()
    assert train(world, tmp_path, "tracker.finish_timeout_s=2") == 0
    assert time.monotonic() - begin < 30.0, "the run takes about 2 s, and waits 2 s"
    assert [line["step"] for line in metrics_of(tmp_path / "run") if "train/loss" in line] == STEPS
    (run,) = server.runs.values()
    assert not run.is_complete
    assert "finish_timeout_s=2" in caplog.text
    server.come_back()
    assert send_as_told(caplog.text, tmp_path).parent == tmp_path / "run" / "wandb"
    assert [step for step, _ in run.points("train/loss")] == STEPS
    assert run.is_complete


def test_a_server_that_is_away_at_the_start_makes_an_offline_run(server: WandbServer, tmp_path: Path, caplog):
    server.cut()
    tracker = Wandb(mode="online", start_timeout_s=1.0)
    tracker.start(tmp_path, "run", {"seed": 1})
    tracker.log(1, {"train/loss": 0.5})
    tracker.finish({}, exit_code=0)
    server.come_back()
    assert send_as_told(caplog.text, tmp_path).name.startswith("offline-run-")
    assert server.runs[(tmp_path / "wandb" / "run_id").read_text()].points("train/loss") == [(1, 0.5)]


def test_an_online_run_that_goes_on_tells_the_server_what_it_lacks_and_nothing_twice(
    server: WandbServer, tmp_path: Path
):
    """The server has steps 1 to 12; the file has 13 besides, and the newest checkpoint is of step 10."""
    (tmp_path / "checkpoints" / "step_00000010").mkdir(parents=True)
    for told, in_file in ((range(1, 13), range(1, 14)), (range(11, 16), ())):
        tracker = Wandb(mode="online")
        tracker.start(tmp_path, "run", {"seed": 1})
        for step in told:
            tracker.log(step, {"train/loss": float(step)})
        tracker.finish({}, exit_code=0)
        for step in in_file:
            MetricsFile(tmp_path / "metrics.jsonl").append(step, {"train/loss": float(step)})
        wandb.teardown()
    (run,) = server.runs.values()
    assert run.points("train/loss") == [(step, float(step)) for step in range(1, 16)]


def test_a_server_that_does_not_tell_what_it_has_ends_no_run(server: WandbServer, tmp_path: Path, monkeypatch, caplog):
    (tmp_path / "checkpoints" / "step_00000010").mkdir(parents=True)
    MetricsFile(tmp_path / "metrics.jsonl").append(1, {"train/loss": 1.0})
    monkeypatch.setattr("tests.support.wandb_api.read", lambda *_: {})
    for step in (1, 1):
        tracker = Wandb(mode="online", start_timeout_s=5.0)
        tracker.start(tmp_path, "run", {"seed": 1})
        tracker.log(step, {"train/loss": 1.0})
        tracker.finish({}, exit_code=0)
    assert "wandb may get points twice that it has already" in caplog.text
    (run,) = server.runs.values()
    assert {step for step, _ in run.points("train/loss")} == {1}


def test_a_client_that_is_killed_ends_no_run(server: WandbServer, tmp_path: Path, caplog):
    tracker = Wandb(mode="online")
    tracker.start(tmp_path, "run", {})
    (client,) = [each for each in psutil.Process().children() if "wandb-core" in " ".join(each.cmdline())]
    client.kill()
    client.wait()
    for step in STEPS:
        tracker.log(step, {"train/loss": 0.5})
    tracker.keep_best({"picabench/acc_delta": "max"})
    tracker.finish({"a": 1}, exit_code=0)
    assert caplog.text.count("wandb's client has failed") == 1
    assert "wandb sync" in caplog.text
    with contextlib.suppress(ConnectionError):
        wandb.teardown()


def test_a_missing_key_is_refused_with_the_way_out(server: WandbServer, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ConfigError, match="wandb login"):
        Wandb(mode="online").start(tmp_path, "run", {})


@pytest.mark.parametrize("name", ["start_timeout_s", "finish_timeout_s"])
def test_a_wait_without_end_is_refused(name: str):
    with pytest.raises(ValueError, match=f"tracker.{name}=0 must be positive"):
        Wandb(**{name: 0})
