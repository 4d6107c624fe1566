"""``summary.json`` and the table: what a run has to show, for the newest and the best checkpoint.

The keys are stable; other programs read them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from physedit.eval_hooks.hook import EvalReport, MetricChange
from physedit.eval_hooks.report_file import change_record
from physedit.train.checkpoint import step_name
from physedit.train.config import ConfigError, suggestion


def summarize(run_name: str, reports: Sequence[EvalReport], best_metric: str | None) -> dict[str, Any]:
    """Returns the content of ``summary.json`` from all reports of a run.

    ``newest`` and ``best`` are null before the first checkpoint was evaluated.
    """
    steps = sorted({report.step for report in reports if report.step > 0})
    best = best_step(reports, best_metric)
    return {
        "run_name": run_name,
        "newest": _entry(reports, steps[-1]) if steps else None,
        "best": _entry(reports, best) if best is not None else None,
        "best_metric": best_metric,
        "notes": sorted({note for report in reports for note in report.notes}),
    }


def best_step(reports: Sequence[EvalReport], best_metric: str | None) -> int | None:
    """Returns the evaluated step with the highest tuned value of ``best_metric``, or the newest without one.

    Raises:
        ConfigError: no report has that metric.
    """
    if best_metric and reports and not any(best_metric in report.metrics for report in reports):
        measured = sorted({key for report in reports for key in report.metrics})
        raise ConfigError(f"best_metric={best_metric} is not measured.{suggestion(best_metric, measured)}")
    tuned = {r.step: r.metrics[best_metric].tuned for r in reports if best_metric in r.metrics} if best_metric else {}
    known = {step: value for step, value in tuned.items() if value is not None and step > 0}
    if known:
        return max(known, key=lambda step: (known[step], -step))
    return max((report.step for report in reports if report.step > 0), default=None)


def scalars(report: EvalReport) -> dict[str, float | None]:
    """Returns a report as flat numbers for metrics.jsonl and trackers: KEY and KEY/change."""
    flat: dict[str, float | None] = {}
    for key, metric in report.metrics.items():
        flat[key] = metric.tuned
        flat[f"{key}/change"] = metric.change
    return flat


def _entry(reports: Sequence[EvalReport], step: int) -> dict[str, Any]:
    metrics: Mapping[str, MetricChange] = {k: v for r in reports if r.step == step for k, v in r.metrics.items()}
    return {
        "step": step,
        "checkpoint": str(Path("checkpoints") / step_name(step)),
        "metrics": {key: change_record(metric) for key, metric in sorted(metrics.items())},
    }
