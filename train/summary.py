"""``summary.json`` and the table: what a run has to show, for the newest and the best checkpoint.

The keys are stable; other programs read them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from physedit.eval_hooks.hook import EvalReport, MetricChange
from physedit.eval_hooks.report_file import change_record
from physedit.train.checkpoint import step_name
from physedit.train.config import ConfigError, suggestion
from physedit.train.failures import EvalFailure
from physedit.train.tracker import Extreme


@dataclass(frozen=True, slots=True)
class BestRule:
    """Which evaluated step is the best.

    Attributes:
        metric: the higher its tuned value the better, or the lower for one that its hook says so of; None for the
            newest step.
        psnr_floor_db: steps whose PSNR of the same hook is below are left out: they destroy what was not to change.
    """

    metric: str | None
    psnr_floor_db: float | None = None


def best_rule(config: DictConfig) -> BestRule:
    """Returns the rule of a run's config."""
    floor = config.best_psnr_floor_db
    return BestRule(config.best_metric, None if floor is None else float(floor))


def summarize(
    run_name: str,
    reports: Sequence[EvalReport],
    rule: BestRule,
    failures: Sequence[EvalFailure] = (),
    pending: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Returns the content of ``summary.json`` from all reports of a run.

    ``pending`` has the steps, by hook, whose pictures are made, but not all judged.

    ``newest`` and ``best`` are null before the first checkpoint was evaluated, and ``best`` where all are below the
    rule's floor.
    """
    steps = sorted({report.step for report in reports if report.step > 0})
    best = next(iter(best_steps(reports, rule)), None)
    return {
        "run_name": run_name,
        "newest": _entry(reports, steps[-1]) if steps else None,
        "best": _entry(reports, best) if best is not None else None,
        "best_metric": rule.metric,
        "best_psnr_floor_db": rule.psnr_floor_db,
        "notes": sorted({note for report in reports for note in report.notes}),
        "failed_evaluations": [asdict(failure) for failure in failures],
        "unjudged_evaluations": [
            _unjudged(hook, step, reports) for hook, steps in (pending or {}).items() for step in steps
        ],
    }


def best_steps(reports: Sequence[EvalReport], rule: BestRule) -> list[int]:
    """Returns the evaluated steps, the best first; before a step has the rule's metric, the newest.

    A step whose judge has left questions open has no value of the metric yet.

    Raises:
        ConfigError: the hook of the rule's metric does not measure it, or no PSNR though there is a floor.
    """
    evaluated = sorted({report.step for report in reports if report.step > 0}, reverse=True)
    if rule.metric is None:
        return evaluated
    tuned = _tuned(reports, rule.metric, "best_metric")
    if not tuned:
        return evaluated
    allowed = set(tuned)
    if rule.psnr_floor_db is not None:
        psnr = _tuned(reports, f"{rule.metric.split('/')[0]}/psnr", "best_psnr_floor_db")
        allowed = {step for step, value in psnr.items() if value >= rule.psnr_floor_db}
    sign = 1 if any(rule.metric in report.lower_is_better for report in reports) else -1
    return sorted((step for step in tuned if step in allowed), key=lambda step: (sign * tuned[step], step))


def _tuned(reports: Sequence[EvalReport], metric: str, setting: str) -> dict[int, float]:
    """Returns the tuned values of ``metric`` by step, without those that have none, or not the last one."""
    own = [report for report in reports if report.hook == metric.split("/")[0]]
    if own and not any(metric in report.metrics for report in own):
        measured = sorted({key for report in reports for key in report.metrics})
        raise ConfigError(f"{setting}: {metric} is not measured.{suggestion(metric, measured)}")
    whole = [report for report in own if report.is_whole and metric in report.metrics]
    values = {report.step: report.metrics[metric].tuned for report in whole}
    return {step: value for step, value in values.items() if value is not None and step > 0}


def scalars(report: EvalReport) -> dict[str, float | None]:
    """Returns a report as flat numbers for metrics.jsonl and trackers: each metric and its change."""
    flat: dict[str, float | None] = {}
    for key, metric in report.metrics.items():
        flat[key] = metric.tuned
        flat[delta_key(key)] = metric.change
    return flat


def delta_key(key: str) -> str:
    """Returns the key of a metric's change: of ``picabench/acc/LAW`` it is ``picabench/acc_delta/LAW``."""
    hook, metric, *group = key.split("/")
    return "/".join((hook, f"{metric}_delta", *group))


def is_delta_key(key: str) -> bool:
    """Tells whether a key of ``scalars`` is that of a change."""
    return key.partition("/")[2].partition("/")[0].endswith("_delta")


def best_of(report: EvalReport) -> dict[str, Extreme]:
    """Returns which value of each change over all items is the best one, the largest or the smallest."""
    overall = [key for key in report.metrics if key.count("/") == 1]
    return {delta_key(key): "min" if key in report.lower_is_better else "max" for key in overall}


def _unjudged(hook: str, step: int, reports: Sequence[EvalReport]) -> dict[str, object]:
    """Returns which evaluation lacks answers, and how many it has; null where none was asked for."""
    found = next((report for report in reports if (report.hook, report.step) == (hook, step)), None)
    num_scored = None if found is None else found.num_questions - found.num_unscored
    return {
        "hook": hook,
        "step": step,
        "scored": num_scored,
        "questions": None if found is None else found.num_questions,
    }


def _entry(reports: Sequence[EvalReport], step: int) -> dict[str, Any]:
    metrics: Mapping[str, MetricChange] = {k: v for r in reports if r.step == step for k, v in r.metrics.items()}
    return {
        "step": step,
        "checkpoint": str(Path("checkpoints") / step_name(step)),
        "metrics": {key: change_record(metric) for key, metric in sorted(metrics.items())},
    }
