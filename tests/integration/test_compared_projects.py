"""``physedit compare --wandb`` by wandb's own client, over runs that the trainer sent to a server."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import wandb
from tests.support.judge_server import failing, judge_server
from tests.support.runs import metrics_of
from tests.support.wandb_server import WandbServer
from typer.testing import CliRunner

from physedit.train.cli import app
from physedit.train.config import ConfigError
from physedit.train.tracker import Wandb
from physedit.train.wandb_runs import Project, read_project

ONLINE = (
    "tracker=wandb", "tracker.mode=online", "tracker.project=physics", "log_every=2", "eval=scenes",
    "eval.scenes.num_steps=1", "eval.scenes.limit=2",
)  # fmt: skip
KEYS = ("scenes/physics_acc", "scenes/psnr")


@pytest.fixture
def server(server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WandbServer:
    """What is read of the server is kept apart from other tests', and tables are wide enough for it."""
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb_cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return server


def compared(out: Path, *options: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["compare", *options, "--out", str(out), "--no-page", "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads((out / "compare.json").read_text(encoding="utf-8")))


def test_a_project_is_compared_with_what_was_judged_late_and_without_the_run_of_the_base(
    server: WandbServer, run_smoke: Callable[..., Path], tmp_path: Path
) -> None:
    folders = {"one": run_smoke(*ONLINE, "tracker.group=ranks", name="one")}
    with judge_server(always=failing(401, "no such key")) as judge:
        place = "eval.scenes.judge"
        asked = (f"judge@{place}=openai_compatible", f"{place}.base_url={judge.base_url}", f"{place}.model=seer")
        late = (*ONLINE, "tracker.group=ranks", "tracker.job_type=sft", "adapter.rank=2", *asked)
        folders["two"] = run_smoke(*late, name="two")
    run_smoke(*ONLINE[:4], "tracker.group=others", name="three")
    assert {run.about["jobType"] for run in server.runs.values()} == {"train", "sft", "base"}
    before = compared(tmp_path / "before", "--wandb", "someone/physics", "--wandb-group", "ranks")
    assert list(before["hooks"]["scenes"]["evaluations"]) == ["one"]
    judged = CliRunner().invoke(app, ["judge", str(folders["two"]), "judge@eval.scenes.judge=pixel_rules"])
    assert judged.exit_code == 0, judged.output

    record = compared(tmp_path / "after", "--wandb", "someone/physics", "--wandb-group", "ranks", "--allow-different")
    assert [(run["name"], run["state"]) for run in record["runs"]] == [("one", "finished"), ("two", "finished")]
    assert "adapter.rank" in record["differing"]
    for run in record["runs"]:
        lines = metrics_of(folders[run["name"]])
        losses = [[line["step"], line["train/loss"]] for line in lines if "train/loss" in line]
        assert run["curves"]["train/loss"] == losses
        found = record["hooks"]["scenes"]["evaluations"][run["name"]]
        (line,) = [line for line in lines if line["step"] == found["step"] == 8 and KEYS[0] in line]
        for key in KEYS:
            assert found["metrics"][key]["tuned"] == line[key]
            assert found["metrics"][key]["change"] == pytest.approx(line[f"{key}_delta"])
    everything = read_project(Project("someone/physics"))
    assert [run.name for run in everything] == ["one", "two", "three"]


def test_the_runs_of_one_sweep_are_read_by_its_id(server: WandbServer, tmp_path: Path, monkeypatch) -> None:
    for name, sweep in (("a", "s1"), ("b", "s1"), ("c", "s2")):
        wandb.teardown()  # an agent starts each run in a process of its own
        monkeypatch.setenv("WANDB_SWEEP_ID", sweep)
        monkeypatch.setenv("WANDB_RUN_ID", f"run{name}")
        monkeypatch.setenv("WANDB_PROJECT", "physics")
        (tmp_path / name).mkdir()
        tracker = Wandb(mode="online")
        tracker.start(tmp_path / name, name, {"optimizer": {"lr": 1.0}})
        tracker.log(3, {"train/loss": 0.5})
        tracker.finish({}, exit_code=0)
    found = read_project(Project("someone/physics/s1"))
    assert [(run.name, run.place, run.curves["train/loss"]) for run in found] == [
        ("a", "someone/physics/runa", ((3, 0.5),)),
        ("b", "someone/physics/runb", ((3, 0.5),)),
    ]
    with pytest.raises(ConfigError, match="no training run of sweep s3"):
        read_project(Project("someone/physics/s3"))


def test_more_runs_than_a_page_of_the_api_are_all_read(server: WandbServer, tmp_path: Path) -> None:
    tracker = Wandb(mode="online", project="physics")
    tracker.start(tmp_path, "run", {"seed": 1})
    tracker.log(1, {"train/loss": 0.5})
    tracker.finish({}, exit_code=0)
    (first,) = server.runs.values()
    for number in range(2, 60):
        server.runs[f"run{number}"] = type(first)(f"run{number}", about=first.about, history=first.history)
    assert len(read_project(Project("someone/physics"))) == 59


def test_a_server_that_is_away_is_one_paragraph(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physedit.train.wandb_runs.API_TIMEOUT_S", 1)
    server.cut()
    done = CliRunner().invoke(app, ["compare", "--wandb", "someone/physics"])
    assert isinstance(done.exception, ConfigError)
    assert "gave no answer" in str(done.exception)
