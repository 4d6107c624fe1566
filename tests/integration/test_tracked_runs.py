"""What wandb gets of runs beside their numbers: group and tags, the base once, pictures, answers, adapters."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.wandb_server import KEY, WandbServer, wandb_server

from physedit.eval_hooks.hook import EvalReport, LateContext
from physedit.eval_hooks.judges.judge import JudgeUnavailable
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.train.judge_run import judge_run
from physedit.train.tracker import Wandb

EVALUATED = (
    "tracker=wandb", "tracker.mode=online", "tracker.group=ranks", "tracker.tags=[toy,scenes]", "eval=scenes",
    "eval.scenes.num_steps=1", "eval.scenes.limit=2", "log_every=8",
)  # fmt: skip


def test_runs_are_grouped_and_share_a_run_of_their_base(server: WandbServer, run_smoke: Callable[..., Path]):
    run_smoke(*EVALUATED, name="one")
    run_smoke(*EVALUATED, "seed=1", "tracker.job_type=try", name="two")
    about = {run.about.get("displayName"): run for run in server.runs.values()}
    assert set(about) == {"one", "base scenes", "two"}
    kinds = {name: run.about["jobType"] for name, run in about.items()}
    assert kinds == {"one": "train", "base scenes": "base", "two": "try"}
    assert all(run.about["groupName"] == "ranks" for run in server.runs.values())
    assert all(run.about["tags"] == ["toy", "scenes"] for run in server.runs.values())
    base = about["base scenes"]
    assert base.name.startswith("base-")
    (point,) = base.points("scenes/physics_acc")
    for name in ("one", "two"):
        summary = about[name].summary
        assert summary["base/scenes/physics_acc"] == point[1]
        assert summary["scenes/physics_acc"] == point[1] + summary["scenes/physics_acc_delta"]["max"]
    one = about["one"]
    (first, first_panel), (last, last_panel) = one.points("scenes/panel")
    assert (first, last) == (0, 8)
    assert first_panel["captions"] == last_panel["captions"]


def test_every_evaluation_has_a_table_of_answers(run_smoke: Callable[..., Path]):
    folder = run_smoke("tracker=wandb", *EVALUATED[4:], name="run")
    files = (folder / "wandb").glob("offline-run-*/files/media/table/scenes/answers_*.table.json")
    tables = [json.loads(file.read_text()) for file in files]
    assert len(tables) == 2
    assert all(table["columns"][:4] == ["item", "law", "instruction", "question"] for table in tables)
    assert all(len({row[0] for row in table["data"]}) == 2 for table in tables)


def test_adapters_are_artifacts_only_when_asked(run_smoke: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[str, list[str], int, list[str]]] = []

    class Spied(Wandb):
        def start(self, *arguments):
            super().start(*arguments)

            log_artifact = self._run.log_artifact

            def spy(artifact, *given, aliases=None, **named):
                if artifact.type == "model":
                    told.append((artifact.type, sorted(artifact.manifest.entries), artifact.metadata["step"], aliases))
                return log_artifact(artifact, *given, aliases=aliases, **named)

            self._run.log_artifact = spy

    monkeypatch.setattr("physedit.train.tracker.Wandb", Spied)
    Spied.__module__ = "physedit.train.tracker"
    short = ("tracker=wandb", "checkpoint.every=4", "eval=scenes", "eval.scenes.num_steps=1", "eval.scenes.limit=1")
    run_smoke(*short, name="without")
    assert told == []
    run_smoke(*short, "tracker.log_adapters=true", name="with")
    file = ["pytorch_lora_weights.safetensors"]
    assert told == [
        ("model", file, 4, ["latest", "step-4"]),
        ("model", file, 8, ["latest", "step-8"]),
        ("model", file, 8, ["best", "step-8"]),
    ]


def named(run: Path) -> dict[str, str]:
    """Returns the digest of the adapter that each alias is on, once the run's logs are sent to a server."""
    with wandb_server() as server:
        command = [sys.executable, "-m", "wandb", "sync", "--include-synced", *logs_of(run)]
        environment = os.environ | {"WANDB_BASE_URL": server.base_url, "WANDB_API_KEY": KEY}
        subprocess.run(command, check=True, timeout=300, capture_output=True, env=environment, cwd=run.parent)
        return server.aliases[f"adapter-{(run / 'wandb' / 'run_id').read_text()}"]


def logs_of(run: Path) -> list[str]:
    return sorted(map(str, (run / "wandb").glob("offline-run-*")))


def test_the_alias_best_follows_a_judge_who_comes_late(run_smoke: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """Step 4 is judged after the run alone, and is the best; the newest checkpoint stays the latest."""
    finish, accuracies = PicaBenchHook.finish, {4: 0.9, 8: 0.5}

    def judged(self: PicaBenchHook, context: LateContext) -> EvalReport:
        if context.step == away:
            raise JudgeUnavailable("gone")
        report = finish(self, context)
        key = "scenes/physics_acc"
        metric = replace(report.metrics[key], tuned=accuracies.get(context.step, 0.1))
        return replace(report, metrics={**report.metrics, key: metric})

    away: int | None = 4
    monkeypatch.setattr(PicaBenchHook, "finish", judged)
    run = run_smoke(
        "tracker=wandb", "tracker.log_adapters=true", "eval_steps=[4]", "eval=scenes", "eval.scenes.num_steps=1",
        "eval.scenes.limit=1", "eval.scenes.background=true", "best_metric=scenes/physics_acc",
    )  # fmt: skip
    before = named(run)
    assert before["best"] == before["latest"] == before["step-8"] != before["step-4"]
    away = None
    judge_run(run, (), None, lambda *_: None)
    assert json.loads((run / "summary.json").read_text())["best"]["step"] == 4
    after = named(run)
    assert after["best"] == after["step-4"] == before["step-4"]
    assert after["latest"] == after["step-8"] == before["step-8"]


def test_the_bases_job_type_is_taken():
    with pytest.raises(ValueError, match="job_type=base"):
        Wandb(job_type="base")
