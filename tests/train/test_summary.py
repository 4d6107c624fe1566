"""Which evaluated step is the best."""

from dataclasses import replace
from pathlib import Path

import pytest

from physedit.eval_hooks.hook import EvalReport, MetricChange
from physedit.train.config import ConfigError
from physedit.train.failures import EvalFailure, read_failures, write_failures
from physedit.train.results import best_numbers
from physedit.train.summary import BestRule, best_of, best_steps, delta_key, is_delta_key, scalars, summarize


def report(step: int, acc: float | None, psnr: float, hook: str = "bench") -> EvalReport:
    values = {f"{hook}/acc": acc, f"{hook}/psnr": psnr}
    metrics = {key: MetricChange(0.1, value, None, None, 4) for key, value in values.items()}
    return EvalReport(hook, step, metrics, Path("eval"))


REPORTS = [
    report(0, 0.9, 50.0),
    report(4, 0.5, 30.0),
    report(8, 0.7, 20.0),
    report(12, 0.7, 31.0),
    report(16, None, 40),
]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (BestRule(None), [16, 12, 8, 4]),
        (BestRule("bench/acc"), [8, 12, 4]),
        (BestRule("bench/acc", psnr_floor_db=25.0), [12, 4]),
        (BestRule("bench/acc", psnr_floor_db=45.0), []),
        (BestRule("other/acc"), [16, 12, 8, 4]),  # its hook has failed so far
    ],
)
def test_steps_are_ranked_by_the_metric_above_the_floor(rule: BestRule, expected: list[int]) -> None:
    assert best_steps(REPORTS, rule) == expected
    best = summarize("run", REPORTS, rule)["best"]
    assert (best and best["step"]) == (expected[0] if expected else None)


def test_a_metric_that_its_hook_does_not_measure_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"best_metric: bench/ac is not measured\. Did you mean bench/acc"):
        best_steps(REPORTS, BestRule("bench/ac"))


def test_failures_are_written_and_read_up_to_the_step_that_is_resumed(tmp_path: Path) -> None:
    failures = [EvalFailure("bench", 4, "no judge"), EvalFailure("bench", 8, "no judge")]
    write_failures(tmp_path, failures)
    assert read_failures(tmp_path, 4) == failures[:1]
    assert [each["step"] for each in summarize("run", [], BestRule(None), failures)["failed_evaluations"]] == [4, 8]
    write_failures(tmp_path, [])
    assert read_failures(tmp_path, 8) == []
    assert not list(tmp_path.iterdir())


def test_of_a_loss_the_lowest_is_the_best() -> None:
    losses = [replace(each, lower_is_better=frozenset({"bench/acc"})) for each in REPORTS]
    assert best_steps(losses, BestRule("bench/acc")) == [4, 8, 12]


def test_changes_are_logged_beside_their_metric_under_the_same_law() -> None:
    change = MetricChange(0.5, 0.75, 0.25, (0.1, 0.4), 4)
    keys = ("picabench/acc", "picabench/acc/Light_Propagation", "picabench/acc_item/category/Optics", "picabench/psnr")
    logged = scalars(EvalReport("picabench", 4, dict.fromkeys(keys, change), Path("eval")))
    assert logged == {
        "picabench/acc": 0.75,
        "picabench/acc_delta": 0.25,
        "picabench/acc/Light_Propagation": 0.75,
        "picabench/acc_delta/Light_Propagation": 0.25,
        "picabench/acc_item/category/Optics": 0.75,
        "picabench/acc_item_delta/category/Optics": 0.25,
        "picabench/psnr": 0.75,
        "picabench/psnr_delta": 0.25,
    }
    assert [key for key in logged if is_delta_key(key)] == [delta_key(key) for key in keys]


def test_the_best_change_is_the_largest_or_of_a_loss_the_smallest() -> None:
    change = MetricChange(0.5, 0.75, 0.25, None, 4)
    metrics = dict.fromkeys(("bench/acc", "bench/loss", "bench/acc/Reflection"), change)
    found = EvalReport("bench", 4, metrics, Path("eval"), lower_is_better=frozenset({"bench/loss"}))
    assert best_of(found) == {"bench/acc_delta": "max", "bench/loss_delta": "min"}


def test_a_tracker_is_told_the_best_checkpoint_beside_the_newest() -> None:
    summary = summarize("run", REPORTS, BestRule("bench/acc"))
    assert best_numbers(summary) == {"best/step": 8, "best/bench/acc": 0.7, "best/bench/psnr": 20.0}
    assert best_numbers(summarize("run", [], BestRule(None))) == {}
