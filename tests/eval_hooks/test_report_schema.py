"""Every report.json is what its schema says, and the schema refuses what it does not say."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.support.stand_ins import PaintingEditor, RedJudge, context_for, write_benchmark

from physedit.eval_hooks.files import DamagedFileError
from physedit.eval_hooks.hook import Cadence, EvalReport, MetricChange
from physedit.eval_hooks.judges.judge import VerdictKind
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.eval_hooks.picabench.measure import MeasuringRules
from physedit.eval_hooks.picabench.outputs import Outputs, score_outputs
from physedit.eval_hooks.picabench.published import Evaluated, place, placement_record
from physedit.eval_hooks.report_file import (
    SCHEMA_VERSION,
    ReportKeys,
    load_report,
    read_evidence,
    report_schema,
    save_report,
)


def faults_of(record: object) -> list[str]:
    """Returns what the schema has against a record, by place."""
    validator = Draft202012Validator(report_schema())
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(record)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Reports of the base and of step 4, with one question that the judge could not answer."""
    hook = PicaBenchHook(
        name="picabench",
        benchmark=str(write_benchmark(tmp_path / "bench", 6)),
        judge=RedJudge(replies=[VerdictKind.UNPARSED]),
        cadence=Cadence(),
        num_steps=1,
        reference=True,
        max_unanswered_share=0.5,
    )
    for step in (0, 4):
        hook.run(context_for(PaintingEditor(), tmp_path / "run", step=step))
    return tmp_path / "run" / "eval" / "picabench"


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return record


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(report_schema())
    assert report_schema()["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def test_reports_of_a_run_are_what_the_schema_says(run: Path) -> None:
    for name in ("base", "step_00000004"):
        record = record_of(run / name)
        assert faults_of(record) == []
        assert set(record) == set(report_schema()["properties"])
    assert record["verdicts"]["base"]["unparsed"] == 1
    assert record["open_questions"]["base"] == [
        {"verdict": "unparsed", "reason": "no yes or no can be read from the reply", "count": 1}
    ]
    assert record["published"]["rows"] == []
    assert "none by this judge" in record["published"]["notes"][0]


def test_a_report_of_numbers_alone_is_too(tmp_path: Path) -> None:
    change = MetricChange(base=None, tuned=0.5, change=None, ci95=None, n=1)
    report = EvalReport("loss", 4, {"loss/all": change}, tmp_path, lower_is_better=frozenset({"loss/all"}))
    save_report(report, keys=ReportKeys("a", "b"), evidence={})
    assert faults_of(record_of(tmp_path)) == []


def test_the_papers_rows_are_what_the_schema_says(run: Path) -> None:
    record = record_of(run / "base")
    evaluated = Evaluated("Qwen/Qwen-Image-Edit", "gpt-5@x", "official", "explicit", 900, 4112)
    record["published"] = placement_record(place(evaluated))
    assert len(record["published"]["rows"]) == 2
    assert faults_of(record) == []


def test_a_run_of_the_papers_base_and_judge_has_the_papers_rows_beside_it(tmp_path: Path) -> None:
    hook = PicaBenchHook(
        name="picabench",
        benchmark=str(write_benchmark(tmp_path / "bench", 3)),
        judge=RedJudge(judge_id="gpt-5@https://api.openai.com/v1 responses"),
        cadence=Cadence(),
        editor="/models/FLUX.1-Kontext-dev",
        level="intermediate",
        num_steps=1,
    )
    report = hook.run(context_for(PaintingEditor(), tmp_path / "run"))
    published = record_of(report.folder)["published"]
    assert [(row["table"], row["trained_on"], row["overall"]) for row in published["rows"]] == [
        (5, None, 0.5377),
        (5, "PICA-100K", 0.5559),
    ]
    assert "over 900 items and 4,112 questions, these over 3 and 6" in published["notes"][-1]
    assert faults_of(record_of(report.folder)) == []


def test_a_report_on_outputs_of_any_editor_is_what_the_schema_says(run: Path, tmp_path: Path) -> None:
    judge = RedJudge(judge_id="gpt-5@https://api.openai.com/v1 responses")
    folder, named = run / "step_00000004", {"editor": "Qwen/Qwen-Image-Edit", "level": "explicit"}
    score_outputs(Outputs(folder, tmp_path / "one", judge, MeasuringRules.STRICT), lambda *_: None)
    score_outputs(Outputs(folder, tmp_path / "two", judge, MeasuringRules.STRICT, **named), lambda *_: None)
    for name, tables in (("one", []), ("two", [6, 6])):
        record = record_of(tmp_path / name)
        assert faults_of(record) == []
        assert [row["table"] for row in record["published"]["rows"]] == tables
        assert {"analysis.json", "output.json", "items.jsonl"} <= {path.name for path in (tmp_path / name).iterdir()}


@pytest.mark.parametrize(
    ("where", "spoil"),
    [
        ("$", lambda record: record.pop("metrics")),
        ("$.schema_version", lambda record: record.update(schema_version=2)),
        ("$.step", lambda record: record.update(step=-1)),
        ("$.metrics['picabench/acc']", lambda record: record["metrics"]["picabench/acc"].pop("ci95")),
        ("$.metrics['picabench/acc'].n", lambda record: record["metrics"]["picabench/acc"].update(n=0.5)),
        ("$.verdicts.base", lambda record: record["verdicts"]["base"].update(maybe=1)),
    ],
)
def test_the_schema_refuses(run: Path, where: str, spoil: Callable[[dict[str, Any]], object]) -> None:
    record = copy.deepcopy(record_of(run / "base"))
    spoil(record)
    assert any(fault.startswith(f"{where}: ") for fault in faults_of(record)), faults_of(record)


def test_a_report_of_another_version_is_not_taken_for_one(run: Path) -> None:
    record = record_of(run / "base")
    (run / "base" / "report.json").write_text(json.dumps(record | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(DamagedFileError, match="schema_version is 2, expected 1"):
        load_report(run / "base")


def test_evidence_of_a_hook_that_keeps_none_is_empty(tmp_path: Path) -> None:
    assert read_evidence(tmp_path) == {}


def test_the_leaderboards_files_lie_beside_the_report(run: Path) -> None:
    for name in ("base", "step_00000004"):
        present = {path.name for path in (run / name).iterdir()}
        assert {"analysis.json", "output.json", "psnr_analysis.json", "psnr_analysis_512.json"} <= present
