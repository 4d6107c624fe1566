"""``report.json``: everything an evaluation found, in the folder of its pictures. Wall time lies beside it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalReport, Flips, MetricChange

_REPORT, _TIMING = "report.json", "timing.json"


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
            "hook": report.hook,
            "step": report.step,
            **asdict(keys),
            "metrics": {name: change_record(change) for name, change in report.metrics.items()},
            "flips": {name: {"gained": f.gained, "lost": f.lost} for name, f in report.flips.items()},
            "notes": list(report.notes),
            **evidence,
        },
    )


def load_report(folder: Path) -> EvalReport:
    """Returns the report of an evaluation folder.

    Raises:
        FileNotFoundError: the evaluation there is not finished.
    """
    path = folder / _REPORT
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no {_REPORT}: its evaluation is not finished. Run it again.")
    record = json.loads(path.read_text(encoding="utf-8"))
    timing = folder / _TIMING
    seconds = json.loads(timing.read_text(encoding="utf-8"))["seconds"] if timing.exists() else 0.0
    return EvalReport(
        hook=record["hook"],
        step=record["step"],
        metrics={name: _change(change) for name, change in record["metrics"].items()},
        folder=folder,
        notes=tuple(record["notes"]),
        seconds=seconds,
        flips={name: Flips(**flips) for name, flips in record["flips"].items()},
    )


def report_keys(folder: Path) -> ReportKeys | None:
    """Returns what the folder's report belongs to, or None without a report that says so."""
    path = folder / _REPORT
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return ReportKeys(record["key"], record["settings_key"]) if {"key", "settings_key"} <= record.keys() else None


def change_record(change: MetricChange) -> dict[str, object]:
    """Returns ``{base, tuned, change, ci95, n}`` as ``summary.json`` and ``report.json`` hold it."""
    return {
        "base": change.base,
        "tuned": change.tuned,
        "change": change.change,
        "ci95": None if change.ci95 is None else list(change.ci95),
        "n": change.n,
    }


def _change(record: Mapping[str, object]) -> MetricChange:
    numbers = {name: record[name] for name in ("base", "tuned", "change")}
    ci95, n = record["ci95"], record["n"]
    assert isinstance(n, int)
    assert ci95 is None or isinstance(ci95, list)
    return MetricChange(
        base=_number(numbers["base"]),
        tuned=_number(numbers["tuned"]),
        change=_number(numbers["change"]),
        ci95=None if ci95 is None else (float(ci95[0]), float(ci95[1])),
        n=n,
    )


def _number(value: object) -> float | None:
    assert value is None or isinstance(value, int | float)
    return None if value is None else float(value)
