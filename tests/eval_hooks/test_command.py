"""A program of the user's own, started for real."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.stand_ins import PaintingEditor, context_for

from physedit.eval_hooks.command import CommandHook
from physedit.eval_hooks.external_program import CommandFailed, parse_answer
from physedit.eval_hooks.hook import Cadence, EvalContext, MetricChange
from physedit.eval_hooks.ranks import FailedElsewhere

SCORE = """
import json, os, pathlib, sys
adapter, step = sys.argv[1:]
assert adapter == os.environ["PHYSEDIT_ADAPTER"] and step == os.environ["PHYSEDIT_STEP"]
assert os.environ.get("RANK") is None and os.environ.get("MASTER_ADDR") is None
out = pathlib.Path(os.environ["PHYSEDIT_OUT"])
(out / "mine.txt").write_text(os.environ["PHYSEDIT_RUN_FOLDER"])
print("loading")
calls = pathlib.Path(os.environ["PHYSEDIT_RUN_FOLDER"]) / "calls.txt"
calls.open("a").write(step + "\\n")
size = pathlib.Path(adapter).stat().st_size if adapter else 0
print(json.dumps({"size": size, "acc/Reflection": {"value": 0.5, "n": 7}}))
print()
"""


@pytest.fixture
def hook_of(tmp_path: Path) -> Callable[..., CommandHook]:
    def make(program: str, *arguments: str, **settings: object) -> CommandHook:
        file = tmp_path / "program.py"
        file.write_text(program)
        command = [sys.executable, str(file), *arguments]
        return CommandHook(name="command", command=command, cadence=Cadence(), **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def context(tmp_path: Path) -> EvalContext:
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes(b"12345")
    return replace(context_for(PaintingEditor(), tmp_path / "run", step=400), adapter_file=adapter)


def calls(context: EvalContext) -> list[str]:
    return (context.run_folder / "calls.txt").read_text().split()


def test_the_program_is_given_the_adapter_and_answers_beside_the_base(
    hook_of: Callable[..., CommandHook], context: EvalContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "here")
    hook = hook_of(SCORE, "{adapter}", "{step}", lower_is_better=["size"])
    hook.check()
    report = hook.run(context)
    assert report.metrics == {
        "command/size": MetricChange(base=0.0, tuned=5.0, change=5.0, ci95=None, n=0),
        "command/acc/Reflection": MetricChange(base=0.5, tuned=0.5, change=0.0, ci95=None, n=7),
    }
    assert report.lower_is_better == {"command/size"}
    assert calls(context) == ["0", "400"]
    assert (report.folder / "stdout.txt").read_text().startswith("loading\n")
    assert (report.folder / "mine.txt").read_text() == str(context.run_folder)
    assert (report.folder.parent / "base" / "mine.txt").exists()


def test_step_0_is_the_base_and_is_not_asked_again(hook_of: Callable[..., CommandHook], context: EvalContext) -> None:
    hook = hook_of(SCORE, "{adapter}", "{step}")
    first = hook.run(replace(context, step=0, adapter_file=None))
    assert first.metrics["command/size"] == MetricChange(0.0, 0.0, 0.0, None, 0)
    later = hook.run(context)
    hook.run(context)
    assert calls(context) == ["0", "400"]
    hook.run(replace(context, adapter_id="other weights"))
    assert calls(context) == ["0", "400", "400"]
    assert [report.step for report in hook.finished_reports(context.run_folder, 400)] == [0, 400]
    assert hook.finished_reports(context.run_folder, 399) == (first,)
    assert later.metrics["command/size"].change == 5.0
    assert hook_of(SCORE, "{adapter}", "{step}", "").finished_reports(context.run_folder, 400) == ()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; print('{}'); print('no card', file=sys.stderr); sys.exit(3)", ["exit code 3", "no card"]),
        ("print('0.5 or so')", ["step 0", "0.5 or so"]),
        ("pass", ["found nothing"]),
        ("print('[1]')", ["JSON object"]),
        ("print('{}')", ["at least one metric"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ["signal 9"]),
    ],
)
def test_a_program_that_fails_fails_the_evaluation_and_is_quoted(
    hook_of: Callable[..., CommandHook], context: EvalContext, program: str, words: list[str]
) -> None:
    with pytest.raises(CommandFailed) as error:
        hook_of(program).run(context)
    for word in words:
        assert word in str(error.value)
    assert not list(context.run_folder.rglob("report.json"))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ('{"a": NaN}', "finite"), ('{"a": true}', "finite"), ('{"a": "0.5"}', "finite"), ('{"a": null}', "finite"),
        ('{"a": {"value": 1}}', "value and n"), ('{"a": {"value": 1, "n": -1}}', "at least 0"),
        ('{"a": {"value": 1, "n": 2, "m": 3}}', "value and n"), ('{"a b": 1}', "name"), ('{"/a": 1}', "name"),
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_none(answer: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_answer(answer)


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(
    hook_of: Callable[..., CommandHook], context: EvalContext, tmp_path: Path
) -> None:
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    started = time.monotonic()
    with pytest.raises(CommandFailed, match=r"longer than timeout_s=3"):
        hook_of(program, timeout_s=3.0).run(context)
    assert time.monotonic() - started < 30
    state = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    deadline = time.monotonic() + 10
    while is_running := state.exists() and state.read_text().split()[2] != "Z":  # a killed process takes a moment
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not is_running


def test_a_stop_ends_the_program(hook_of: Callable[..., CommandHook], context: EvalContext) -> None:
    def stop(_done: int, _total: int, _label: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook_of("import time; time.sleep(60)").run(replace(context, progress=stop))


def test_other_ranks_start_nothing_and_read_the_report(
    hook_of: Callable[..., CommandHook], context: EvalContext
) -> None:
    hook = hook_of(SCORE, "{adapter}", "{step}")
    report = hook.run(context)
    waits: list[int] = []
    other = replace(context, rank=1, world_size=2, barrier=lambda: waits.append(1))
    assert hook.run(other) == report
    assert waits
    assert calls(context) == ["0", "400"]
    (context.run_folder / "eval/command/.failed.0").write_text("rank 0: CommandFailed: it broke")
    with pytest.raises(FailedElsewhere, match="it broke"):
        hook.run(other)


def test_without_the_adapters_file_nothing_is_started_for_it(
    hook_of: Callable[..., CommandHook], context: EvalContext
) -> None:
    with pytest.raises(CommandFailed, match="no file of the adapter at step 400"):
        hook_of(SCORE, "{adapter}", "{step}").run(replace(context, adapter_file=None))


def test_a_metric_that_is_not_measured_cannot_be_lower(
    hook_of: Callable[..., CommandHook], context: EvalContext
) -> None:
    with pytest.raises(CommandFailed, match=r"names fid, but .* measures size, acc/Reflection"):
        hook_of(SCORE, "{adapter}", "{step}", lower_is_better=["fid"]).run(context)


def test_settings_that_start_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        CommandHook(name="command", command=[], cadence=Cadence())
    with pytest.raises(ValueError, match="timeout_s"):
        CommandHook(name="command", command=["true"], cadence=Cadence(), timeout_s=0)
    with pytest.raises(CommandFailed, match="no program here"):
        CommandHook(name="command", command=["no-such-program"], cadence=Cadence()).check()
