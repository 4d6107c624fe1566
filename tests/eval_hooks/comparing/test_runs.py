"""Reading runs, and what differs between them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.eval_hooks.comparing.conftest import write_run

from physedit.eval_hooks.comparing.comparison import compare_runs
from physedit.eval_hooks.comparing.differences import DifferentConditions, different_conditions, differing_settings
from physedit.eval_hooks.comparing.runs import (
    MOST_POINTS,
    CompareError,
    Evaluation,
    When,
    flat,
    named_apart,
    read_run,
    thinned,
)
from physedit.eval_hooks.files import DamagedFileError


def test_a_run_is_read_with_its_newest_evaluation_and_its_curves(folders) -> None:
    run = read_run(folders[0])
    assert (run.name, run.settings["optimizer.lr"]) == ("even", 1e-4)
    assert run.evaluations["picabench"].step == 400
    assert run.evaluations["picabench"].flips["picabench/acc"].gained == 6
    assert run.curves["train/loss"] == ((100, 0.01), (200, 0.005))
    assert [step for step, _ in run.curves["picabench/acc"]] == [0, 200, 400]
    assert run.curves["picabench/acc"][0][1] == 0.5
    assert not any(key.startswith("time/") for key in run.curves)


def test_the_best_step_is_the_summarys(folders) -> None:
    assert read_run(folders[0], when=When.BEST).evaluations["picabench"].step == 200


def test_conditions_are_those_the_report_proves(folders) -> None:
    conditions = read_run(folders[0]).evaluations["picabench"].conditions
    assert {"benchmark.benchmark", "judge.id", "judge.measures", "sampler.num_steps", "sampler.seed", "level"} <= (
        conditions.keys()
    )
    assert conditions["sampler.num_steps"] == 1
    assert not {"sampler.adapter", "sampler.step", "sampler.device", "sampler.torch"} & conditions.keys()


def test_only_settings_that_differ_are_named_those_of_a_sweep_first(folders) -> None:
    runs = [read_run(folder) for folder in folders]
    assert differing_settings(runs) == ("optimizer.lr",)
    changed = [replace(run, settings={**run.settings, "z": place}, swept=("z",)) for place, run in enumerate(runs)]
    assert differing_settings(changed) == ("z", "optimizer.lr")


def test_numbers_that_are_equal_are_equal_whoever_read_them(folders) -> None:
    run = read_run(folders[0])
    one, two = (replace(run, settings={"a": value}) for value in (2, 2.0))
    assert differing_settings([one, two]) == ()
    assert differing_settings([replace(run, settings={"a": True}), two]) == ("a",)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_steps": 2}, r"sampler\.num_steps is 1 in even, 2 in other"),
        ({"judge_id": "another"}, r"judge\.id is red-judge in even, another in other"),
        ({"level": "explicit"}, r"level is superficial in even, explicit in other"),
    ],
)
def test_runs_that_were_not_evaluated_alike_are_refused_and_the_difference_is_named(
    folders, benchmark: Path, tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    other = write_run(tmp_path / "other", benchmark, only_even=True, settings={}, **changed)  # type: ignore[arg-type]
    runs = [read_run(folders[0]), read_run(other)]
    with pytest.raises(DifferentConditions, match=named):
        compare_runs(runs)
    allowed = compare_runs(runs, allow_different=True)
    assert any(named.split(" ")[0].replace("\\", "") in each for each in allowed.hooks[0].differences)


def test_guidance_that_is_left_to_each_editor_is_alike() -> None:
    def evaluation(guidance: float, asked: float | None) -> Evaluation:
        return Evaluation(
            "picabench", 1, {}, conditions={"sampler.guidance": guidance}, configured={"sampler.guidance": asked}
        )

    assert different_conditions({"a": evaluation(2.5, None), "b": evaluation(1.0, None)}) == ()
    assert different_conditions({"a": evaluation(2.5, None), "b": evaluation(1.0, 1.0)}) != ()


def test_without_a_report_what_was_configured_is_compared() -> None:
    proven = Evaluation("p", 1, {}, conditions={"judge.id": "x@1"}, configured={"judge.model": "x"})
    from_wandb = Evaluation("p", 1, {}, configured={"judge.model": "y"})
    assert different_conditions({"a": proven, "b": from_wandb}) == ("judge.model is x in a, y in b",)


def test_names_tell_runs_apart(folders) -> None:
    run = read_run(folders[0])
    apart = named_apart([replace(run, place="/x/one/run"), replace(run, place="/x/two/run")])
    assert [each.name for each in apart] == ["one/run", "two/run"]
    with pytest.raises(CompareError, match="given twice"):
        named_apart([run, run])


def test_a_later_evaluation_of_a_run_has_the_settings_of_the_run(folders, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folders[0] / "eval", run / "evaluations" / "step_00000400" / "eval")
    shutil.copy(folders[0] / "config.yaml", run)
    found = read_run(run / "evaluations" / "step_00000400")
    assert (found.settings["optimizer.lr"], found.evaluations["picabench"].step) == (1e-4, 400)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="no run folder"):
        read_run(tmp_path)


def test_a_run_without_an_evaluation_is_shown_and_said(tmp_path: Path, folders) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "metrics.jsonl").write_text('{"step": 1, "train/loss": 0.5}\n')
    run = read_run(tmp_path / "bare")
    assert run.notes == ("bare has no finished evaluation.",)
    comparison = compare_runs([read_run(folders[0]), run])
    assert list(comparison.hooks[0].evaluations) == ["even"]
    assert "bare has no finished evaluation." in comparison.notes


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(DamagedFileError, match=r"config\.yaml is damaged"):
        read_run(tmp_path)


def test_long_curves_are_thinned_with_their_ends() -> None:
    curve = thinned([(step, 0.0) for step in range(10_000, 0, -1)])
    assert (len(curve), curve[0][0], curve[-1][0]) == (MOST_POINTS, 1, 10_000)


def test_configs_are_flat_with_lists_as_text() -> None:
    assert flat({"a": {"b": [1, 2], "c": None}, "d": {}}) == {"a.b": "[1, 2]", "a.c": None, "d": "{}"}
