"""Reports that come late: in order, once, and none of them the best before it is whole."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from physedit.eval_hooks.hook import EvalReport, LateContext, MetricChange
from physedit.train.late import LateReports
from physedit.train.metrics_file import MetricsFile
from physedit.train.summary import BestRule, best_steps, summarize


def report(step: int, acc: float, num_unscored: int = 0) -> EvalReport:
    metrics = {"bench/acc": MetricChange(0.1, acc, acc - 0.1, None, 4)}
    return EvalReport("bench", step, metrics, Path("eval"), num_questions=8, num_unscored=num_unscored)


class Hook:
    """Judges when it is let, and fails at step 4."""

    name, is_background = "bench", True

    def __init__(self) -> None:
        self.may_judge = threading.Event()
        self.steps: list[int] = []

    def generate(self, context: object) -> None:
        """Nothing is needed."""

    def pending(self, run_folder: Path, last_step: int) -> tuple[int, ...]:
        return ()

    def stop(self) -> None:
        """It ends by itself."""

    def finish(self, context: LateContext) -> EvalReport:
        while not self.may_judge.is_set():
            context.progress(0, 1, "waiting")
            time.sleep(0.005)
        self.steps.append(context.step)
        if context.step == 4:
            raise ValueError("too many questions have no answer")
        return report(context.step, 0.5)


def test_evaluations_end_in_the_order_in_which_they_were_handed_over(tmp_path: Path) -> None:
    hook, late = Hook(), LateReports(tmp_path, tmp_path)
    for step in (0, 2, 4, 6):
        late.submit(hook, step)
    assert late.arrived() == []
    assert (late.num_open, late.open_steps) == (4, {0, 2, 4, 6})
    hook.may_judge.set()
    found = []
    while late.num_open:
        late.wait(lambda: False)
        found += late.arrived()
    assert [arrival.step for arrival in found] == hook.steps == [0, 2, 4, 6]
    assert [arrival.report is None for arrival in found] == [False, False, True, False]
    assert str(found[2].error) == "too many questions have no answer"
    late.close()


def test_a_close_ends_what_is_under_way_and_leaves_it_open(tmp_path: Path) -> None:
    hook, late = Hook(), LateReports(tmp_path, tmp_path)
    late.submit(hook, 2)
    started = time.monotonic()
    late.wait(lambda: True)
    late.close()
    assert time.monotonic() - started < 30
    assert (hook.steps, late.arrived(), late.open_steps) == ([], [], {2})
    assert not [each for each in threading.enumerate() if each.name == "physedit-judging"]
    LateReports(tmp_path, tmp_path).close()


def test_a_step_with_open_questions_is_not_the_best_and_is_listed(tmp_path: Path) -> None:
    reports = [report(4, 0.5), report(8, 0.9, num_unscored=3), report(12, 0.6)]
    rule = BestRule("bench/acc")
    assert best_steps(reports, rule) == [12, 4]
    summary = summarize("run", reports, rule, (), {"bench": (8, 16)})
    assert summary["best"]["step"] == 12
    assert summary["unjudged_evaluations"] == [
        {"hook": "bench", "step": 8, "scored": 5, "questions": 8},
        {"hook": "bench", "step": 16, "scored": None, "questions": None},
    ]
    assert best_steps([replace(each, num_unscored=0) for each in reports], rule) == [8, 12, 4]


def test_an_evaluation_has_one_line_which_other_values_replace(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(4, {"train/loss": 1.0})
    file.put(4, "bench", {"bench/acc": 0.5, "bench/psnr": None})
    file.put(2, "bench", {"bench/acc": 0.4})
    file.put(4, "benches", {"benches/acc": 0.1})
    assert file.has(4, "bench", {"bench/psnr": None, "bench/acc": 0.5})
    assert not file.has(4, "bench", {"bench/acc": 0.6})
    assert not file.has(3, "bench", {"bench/acc": 0.5})
    file.put(4, "bench", {"bench/acc": 0.6})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": 4, "train/loss": 1.0}'
    assert lines[-1] == '{"step": 4, "bench/acc": 0.6}'
    assert len(lines) == 4
    with pytest.raises(ValueError, match="finite"):
        file.put(4, "bench", {"bench/acc": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines
