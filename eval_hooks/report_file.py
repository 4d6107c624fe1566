"""``report.json``: everything an evaluation found, in the folder of its pictures. Wall time lies beside it.

``report.schema.json`` says what the file holds, for the programs that read it.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from physedit.eval_hooks.files import DamagedFileError, read_json, write_json
from physedit.eval_hooks.hook import EvalReport, Flips, MetricChange, MetricValue

log = logging.getLogger(__name__)

_REPORT, _TIMING = "report.json", "timing.json"

SCHEMA_VERSION = 1
"""Raise it when a key goes or changes its meaning, and describe that in ``report.schema.json``."""


@dataclass(frozen=True, slots=True)
class ReportKeys:
    """What a report belongs to; one of other keys is not taken for it.

    Attributes:
        key: hash of everything that decides the report.
        settings_key: hash of the part that can be told without a model: benchmark, edit settings, judge, measures.
    """

    key: str
    settings_key: str


def save_report(report: EvalReport, *, keys: ReportKeys, evidence: Mapping[str, object]) -> None:
    """Writes the report to its folder.

    Args:
        report: what was found.
        keys: what it belongs to.
        evidence: what else belongs beside the numbers: judge, settings, verdict counts.
    """
    write_json(report.folder / _TIMING, {"seconds": report.seconds})
    write_json(
        report.folder / _REPORT,
        {
            "schema_version": SCHEMA_VERSION,
            "hook": report.hook,
            "step": report.step,
            **asdict(keys),
            "metrics": {name: change_record(change) for name, change in report.metrics.items()},
            "flips": {name: {"gained": f.gained, "lost": f.lost} for name, f in report.flips.items()},
            "input_copy": {name: value_record(value) for name, value in report.input_copy.items()},
            "lower_is_better": sorted(report.lower_is_better),
            "notes": list(report.notes),
            "questions": {"all": report.num_questions, "unscored": report.num_unscored},
            **evidence,
        },
    )


def load_report(folder: Path) -> EvalReport:
    """Returns the report of an evaluation folder.

    Raises:
        FileNotFoundError: the evaluation there is not finished.
        DamagedFileError: the report is none that ``save_report`` wrote.
    """
    path = folder / _REPORT
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no {_REPORT}: its evaluation is not finished. Run it again.")
    record = read_json(path)
    try:
        return _report(record, folder)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise DamagedFileError(
            f"{path} is damaged: {type(error).__name__} {error} while reading it. Delete the file and run the "
            "evaluation again; its pictures and answers are kept."
        ) from error


def read_evidence(folder: Path) -> Mapping[str, Any]:
    """Returns all that ``report.json`` of an evaluation folder holds, also what was found beside the numbers.

    Empty where there is no whole report, as for hooks that keep none.
    """
    try:
        return read_json(folder / _REPORT)
    except (FileNotFoundError, DamagedFileError):
        return {}


def report_schema() -> Mapping[str, Any]:
    """Returns the JSON schema of ``report.json``."""
    text = resources.files("physedit.eval_hooks").joinpath("report.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def report_keys(folder: Path) -> ReportKeys | None:
    """Returns what the folder's report belongs to, or None without a whole report that says so."""
    try:
        load_report(folder)
        record = read_json(folder / _REPORT)
    except (FileNotFoundError, DamagedFileError):
        return None
    if not {"key", "settings_key"} <= record.keys():
        return None
    return ReportKeys(str(record["key"]), str(record["settings_key"]))


def finished_reports(hook_folder: Path, settings_key: str, last_step: int) -> tuple[EvalReport, ...]:
    """Returns a hook's whole reports of steps up to ``last_step``, by step; those of other settings are left out."""
    keys_of = {folder: report_keys(folder) for folder in sorted(hook_folder.glob("*"))}
    kept = [folder for folder, keys in keys_of.items() if keys and keys.settings_key == settings_key]
    if num_others := sum(keys is not None for keys in keys_of.values()) - len(kept):
        log.info("%s: %d reports were made with other settings and are left out", hook_folder.name, num_others)
    return tuple(report for report in map(load_report, kept) if report.step <= last_step)


def change_record(change: MetricChange) -> dict[str, object]:
    """Returns ``{base, tuned, change, ci95, n}`` as ``summary.json`` and ``report.json`` hold it."""
    return {
        "base": change.base,
        "tuned": change.tuned,
        "change": change.change,
        "ci95": None if change.ci95 is None else list(change.ci95),
        "n": change.n,
    }


def value_record(value: MetricValue) -> dict[str, object]:
    """Returns ``{value, standard_error, n}`` as ``report.json`` holds it."""
    return {"value": value.value, "standard_error": value.standard_error, "n": value.n}


def _report(record: Mapping[str, Any], folder: Path) -> EvalReport:
    if (version := record.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}, expected {SCHEMA_VERSION}")
    return EvalReport(
        hook=record["hook"],
        step=record["step"],
        metrics={name: _change(change) for name, change in record["metrics"].items()},
        folder=folder,
        notes=tuple(record["notes"]),
        seconds=_seconds(folder),
        flips={name: Flips(**flips) for name, flips in record["flips"].items()},
        input_copy={name: _value(value) for name, value in record.get("input_copy", {}).items()},
        lower_is_better=frozenset(record.get("lower_is_better", ())),
        num_questions=int(record.get("questions", {}).get("all", 0)),
        num_unscored=int(record.get("questions", {}).get("unscored", 0)),
    )


def _seconds(folder: Path) -> float:
    """Returns the wall time, or 0 where the file beside the report does not tell it."""
    try:
        return _number(read_json(folder / _TIMING)["seconds"]) or 0.0
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError):
        return 0.0


def _change(record: Mapping[str, Any]) -> MetricChange:
    ci95 = record["ci95"]
    return MetricChange(
        base=_number(record["base"]),
        tuned=_number(record["tuned"]),
        change=_number(record["change"]),
        ci95=None if ci95 is None else (float(ci95[0]), float(ci95[1])),
        n=int(record["n"]),
    )


def _value(record: Mapping[str, Any]) -> MetricValue:
    return MetricValue(_number(record["value"]), _number(record["standard_error"]), int(record["n"]))


def _number(value: object) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return None if value is None else float(value)
