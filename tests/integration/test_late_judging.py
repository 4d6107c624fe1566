"""Judging beside training, and after it: reports that come late are logged once, at the step that they are about."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.judge_server import NO, YES, Reply, failing, judge_server
from tests.support.runs import StopAfter, adapter_bytes, metrics_of
from tests.support.stand_ins import write_benchmark

from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.train.checkpoint import step_folders
from physedit.train.cli import app
from physedit.train.events import RunEvents
from physedit.train.guarded import guarded
from physedit.train.signals import Stopped

HOOK = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=6", "eval_steps=[2,4,6]")
BESIDE = (*HOOK, "eval.scenes.background=true")
STEPS = [0, 2, 4, 6, 8]


def asking(server, *settings: str) -> tuple[str, ...]:
    judge = "eval.scenes.judge"
    given = (f"base_url={server.base_url}", "model=seer", "patience_s=0.3", "concurrency=1", *settings)
    return (f"judge@{judge}=openai_compatible", *(f"{judge}.{setting}" for setting in given))


def verb(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: app(args=["judge", *map(str, arguments)]))
    return int(ended.value.code or 0)


def lines_of(folder: Path) -> dict[int, dict[str, object]]:
    """Returns the hook's lines by step; each step must have one."""
    found = [line for line in metrics_of(folder) if "scenes/physics_acc" in line]
    assert len(found) == len({line["step"] for line in found})
    return {line["step"]: line for line in found}


def unjudged(folder: Path) -> list[int]:
    return [each["step"] for each in json.loads((folder / "summary.json").read_text())["unjudged_evaluations"]]


def saved(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in step_folders(folder / "checkpoints")]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the judge beside training says nothing."""
    opened, whole = threading.Event(), PicaBenchHook.finish

    def finish(self, context):
        while not opened.is_set():
            context.progress(0, 1, "waiting")
            time.sleep(0.01)
        return whole(self, context)

    monkeypatch.setattr(PicaBenchHook, "finish", finish)
    return opened


def at_the_end(monkeypatch: pytest.MonkeyPatch, action: Callable[[RunEvents], None]) -> None:
    """Does something when all steps are trained, before the late reports are waited for."""
    whole = RunEvents.finish

    def finish(self):
        action(self)
        whole(self)

    monkeypatch.setattr(RunEvents, "finish", finish)


def test_a_run_is_the_same_to_the_bit_with_its_judge_beside_it(run_smoke):
    plain, beside = run_smoke(*HOOK, name="plain"), run_smoke(*BESIDE, name="beside")
    for step in STEPS[1:]:
        names = [f"eval/scenes/step_{step:08d}/{name}" for name in ("report.json", "items.jsonl", "consistency.jsonl")]
        assert [(plain / name).read_bytes() for name in names] == [(beside / name).read_bytes() for name in names]
        if step in saved(plain):
            assert adapter_bytes(plain, step) == adapter_bytes(beside, step)
    assert sorted(lines_of(beside)) == STEPS
    assert lines_of(beside) == lines_of(plain)
    train = [[line for line in metrics_of(run) if "train/loss" in line] for run in (plain, beside)]
    assert train[0] == train[1]
    summaries = [json.loads((run / "summary.json").read_text()) | {"run_name": ""} for run in (plain, beside)]
    assert summaries[0] == summaries[1]


def test_checkpoints_stay_until_late_reports_tell_which_is_the_best(run_smoke, gate, monkeypatch):
    found, seen = PicaBenchHook.finish, []

    def best_at_four(self, context):
        report = found(self, context)
        key = "scenes/physics_acc"
        value = {2: 0.95, 4: 0.9, 6: 0.5, 8: 0.4}.get(report.step, 0.1)
        psnr = {2: 10.0}.get(report.step, 30.0)
        metrics = {**report.metrics, key: replace(report.metrics[key], tuned=value)}
        metrics["scenes/psnr"] = replace(report.metrics["scenes/psnr"], tuned=psnr)
        return replace(report, metrics=metrics)

    def open_gate(events):
        seen.append((saved(events.folder), sorted(lines_of(events.folder)), unjudged(events.folder)))
        gate.set()

    monkeypatch.setattr(PicaBenchHook, "finish", best_at_four)
    at_the_end(monkeypatch, lambda events: (events.write_results(), open_gate(events)))
    rule = ("checkpoint.keep=1", "best_metric=scenes/physics_acc", "best_psnr_floor_db=20")
    run = run_smoke(*BESIDE, *rule, name="kept")
    assert seen == [(STEPS[1:], [], STEPS)]
    assert sorted(lines_of(run)) == STEPS
    assert saved(run) == [4, 8], "the newest, and the best above the floor; the one at step 2 is below it"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best"]["step"] == 4
    assert summary["unjudged_evaluations"] == []


def test_a_stop_while_the_judge_is_waited_for_leaves_a_run_that_goes_on(run_smoke, gate, monkeypatch):
    whole = run_smoke(*HOOK, name="whole")

    def stop(events):
        events.asking.stop.signal_number = 15

    with monkeypatch.context() as patch:
        at_the_end(patch, stop)
        with pytest.raises(Stopped, match="physedit judge"):
            run_smoke(*BESIDE, name="run")
    run = whole.parent / "run"
    assert lines_of(run) == {}
    assert saved(run) == STEPS[1:], "what is not judged yet stays"
    gate.set()
    run_smoke(*BESIDE, name="run")
    assert lines_of(run) == lines_of(whole)
    assert adapter_bytes(run, 8) == adapter_bytes(whole, 8)


def test_a_stop_in_training_ends_the_judge_beside_it_and_the_resumed_run_judges(run_smoke, gate):
    whole = run_smoke(*HOOK, name="whole")
    started = time.monotonic()
    with pytest.raises(Stopped):
        run_smoke(*BESIDE, name="run", stop=StopAfter(40))
    assert not [thread for thread in threading.enumerate() if thread.name == "physedit-judging"]
    assert time.monotonic() - started < 60
    gate.set()
    run = run_smoke(*BESIDE, name="run")
    assert lines_of(run) == lines_of(whole)


def test_a_stop_does_not_wait_for_a_server_that_is_away(run_smoke, monkeypatch):
    """Questions are asked again for ten minutes; a run that is stopped ends their waits."""

    def stop(events):
        while not server.asked:
            time.sleep(0.01)
        events.asking.stop.signal_number = 15

    at_the_end(monkeypatch, stop)
    with judge_server(always=failing(503, "restarting")) as server:
        before = set(threading.enumerate())
        started = time.monotonic()
        with pytest.raises(Stopped):
            run_smoke(*BESIDE, *asking(server, "cache_folder=null", "patience_s=600"), name="run")
    assert time.monotonic() - started < 60
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in left if name.startswith(("physedit-judging", "ThreadPoolExecutor"))]


def test_an_outage_is_mended_by_the_verb_once_and_at_the_right_steps(run_smoke, capsys):
    with judge_server([Reply()] * 5, failing(503, "restarting")) as server:
        settings = (*HOOK, *asking(server, "cache_folder=null"))
        run = run_smoke(*settings, "checkpoint.keep=1", name="run")
        assert lines_of(run) == {}
        assert unjudged(run) == STEPS
        assert saved(run) == STEPS[1:]
        assert verb(run, "--dry-run", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"scenes": STEPS}
        server.script.append(Reply())
        assert verb(run) == 1
        assert "Not all is judged. scenes at step 0: 6 of" in capsys.readouterr().err
        assert lines_of(run) == {}
        server.always = Reply()
        assert verb(run) == 0
        assert unjudged(run) == []
        server.asked.clear()
        before = (run / "metrics.jsonl").read_bytes()
        assert verb(run) == 0
        assert "judged now: nothing; logged now: 0" in capsys.readouterr().out
        assert not server.asked
        assert (run / "metrics.jsonl").read_bytes() == before
        whole = run_smoke(*settings, name="whole")
    assert lines_of(run) == lines_of(whole)
    assert sorted(lines_of(run)) == STEPS
    assert adapter_bytes(run, 8) == adapter_bytes(whole, 8)


def test_a_judge_that_refuses_is_replaced_by_another_and_wandb_gets_the_points_under_the_same_id(
    run_smoke, monkeypatch
):
    monkeypatch.setenv("WANDB_SILENT", "true")
    with judge_server(always=failing(401, "no such key")) as server:
        short = ("eval=scenes", "eval.scenes.num_steps=1", "eval.scenes.limit=2", "tracker=wandb")
        run = run_smoke(*short, *asking(server), name="run")
        failed = json.loads((run / "summary.json").read_text())["failed_evaluations"]
        assert [each["step"] for each in failed] == [0, 8]
    assert verb(run, "judge@eval.scenes.judge=pixel_rules") == 0
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["failed_evaluations"], summary["unjudged_evaluations"]) == ([], [])
    assert sorted(lines_of(run)) == [0, 8]
    offline = sorted((run / "wandb").glob("offline-run-*"))
    assert len(offline) == 2
    assert {folder.name.rpartition("-")[2] for folder in offline} == {(run / "wandb" / "run_id").read_text()}
    assert verb(run, "judge@eval.scenes.judge=pixel_rules") == 0
    assert len(list((run / "wandb").glob("offline-run-*"))) == 2, "nothing to log, so nothing is opened"


def test_picabench_acc_names_the_best_where_the_judge_answers_late(run_smoke, tmp_path, gate, monkeypatch):
    """A server answers about pictures by their bytes, so checkpoints differ; the best one is kept and named."""
    benchmark = write_benchmark(tmp_path / "bench", 6)
    at_the_end(monkeypatch, lambda _events: gate.set())

    def by_picture(asked):
        return Reply(text=YES if sum(asked.picture) % 2 else NO)

    with judge_server(always=by_picture) as server:
        settings = (
            "eval=picabench", f"picabench.benchmark={benchmark}", "picabench.revision=null", "judge=openai_compatible",
            f"judge.base_url={server.base_url}", "judge.model=seer", "eval.picabench.num_steps=1", "eval_steps=[2,4,6]",
            "eval.picabench.background=true", "best_metric=picabench/acc", "checkpoint.keep=1",
        )  # fmt: skip
        run = run_smoke(*settings, name="run")
    lines = {line["step"]: line["picabench/acc"] for line in metrics_of(run) if "picabench/acc" in line}
    assert sorted(lines) == STEPS
    best = max(STEPS[1:], key=lambda step: (lines[step], -step))
    assert json.loads((run / "summary.json").read_text())["best"]["step"] == best
    assert saved(run) == sorted({best, 8})
