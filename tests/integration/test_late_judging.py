"""Judging beside training, and after it: reports that come late are logged once, at the step that they are about."""

import json
import threading
from pathlib import Path

import pytest
from tests.support.judge_server import NO, YES, Reply, failing, judge_server
from tests.support.runs import StopAfter, adapter_bytes, metrics_of

from physedit.train.checkpoint import step_folders
from physedit.train.signals import Stopped

HOOK = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=6", "eval_steps=[2,4,6]")
BESIDE = (*HOOK, "eval.scenes.background=true")


def asking(server, *settings: str) -> tuple[str, ...]:
    judge = "eval.scenes.judge"
    given = (f"base_url={server.base_url}", "model=seer", "patience_s=0.3", *settings)
    return (f"judge@{judge}=openai_compatible", *(f"{judge}.{setting}" for setting in given))


def logged(folder: Path) -> list[int]:
    return [line["step"] for line in metrics_of(folder) if "scenes/physics_acc" in line]


def by_step(folder: Path) -> dict[int, dict[str, object]]:
    return {line["step"]: line for line in metrics_of(folder) if "scenes/physics_acc" in line}


def unjudged(folder: Path) -> list[int]:
    return [each["step"] for each in json.loads((folder / "summary.json").read_text())["unjudged_evaluations"]]


def test_a_run_is_the_same_to_the_bit_with_its_judge_beside_it(run_smoke):
    plain, beside = run_smoke(*HOOK, name="plain"), run_smoke(*BESIDE, name="beside")
    for step in (2, 4, 6, 8):
        names = [f"eval/scenes/step_{step:08d}/{name}" for name in ("report.json", "items.jsonl", "consistency.jsonl")]
        assert [(plain / name).read_bytes() for name in names] == [(beside / name).read_bytes() for name in names]
    assert adapter_bytes(plain, 8) == adapter_bytes(beside, 8)
    assert sorted(logged(beside)) == [0, 2, 4, 6, 8]
    assert by_step(beside) == by_step(plain)
    train = [[line for line in metrics_of(run) if "train/loss" in line] for run in (plain, beside)]
    assert train[0] == train[1]
    summaries = [json.loads((run / "summary.json").read_text()) | {"run_name": ""} for run in (plain, beside)]
    assert summaries[0] == summaries[1]


def test_checkpoints_stay_until_their_late_reports_tell_which_is_the_best(run_smoke):
    """The judge answers about no step before the last one is trained; then step 4 is the best."""
    is_trained, asked = threading.Event(), []

    def answer(_asked):
        is_trained.wait(timeout=60)
        return Reply(text=YES)

    with judge_server(always=answer) as server:
        seen = []

        def collect(step):
            seen.append(step)

        run = run_smoke(
            *BESIDE, *asking(server), "checkpoint.keep=1", "best_metric=scenes/physics_acc", name="kept",
            stop=_At(8, lambda: (asked.append([p.name for p in step_folders(Path(server_run(run_smoke)))]), is_trained.set())),
        )  # fmt: skip
    assert sorted(logged(run)) == [0, 2, 4, 6, 8]
