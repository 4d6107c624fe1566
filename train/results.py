"""What a run's evaluations have found so far, as its folder tells it: summary.json, report.html, metrics.jsonl."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalHook, EvalReport, LateHook
from physedit.eval_hooks.panel import has_pictures, write_sheet
from physedit.eval_hooks.report import write_html_report
from physedit.eval_hooks.report_file import report_keys
from physedit.eval_hooks.tracked import ANSWER_COLUMNS, answer_rows, write_fixed_panel
from physedit.models.adapter_file import ADAPTER_FILE
from physedit.train.checkpoint import step_folders, step_name
from physedit.train.failures import EvalFailure, write_failures
from physedit.train.metrics_file import MetricsFile
from physedit.train.summary import BestRule, best_of, scalars, summarize
from physedit.train.tracker import Tracker
from physedit.train.wandb_destination import BASE_JOB

logger = logging.getLogger(__name__)

_ID_CHARACTERS = 16


def facts_of(config: DictConfig) -> dict[str, str]:
    """Returns what a reader of the report wants to know of the run first."""
    optimizer = config.optimizer
    return {
        "base": str(config.backbone.weights),
        "data": str(config.data.get("path") or config.data["_target_"]),
        "adapter": f"LoRA rank {config.adapter.rank}, {config.adapter.preset or 'own targets'}",
        "optimizer": f"{str(optimizer['_target_']).rsplit('.', 1)[-1]}, lr {optimizer.get('lr')}",
        "training": f"{config.num_steps} steps of {config.global_batch} samples, seed {config.seed}",
    }


def pending_steps(hooks: Sequence[EvalHook], run_folder: Path, last_step: int) -> dict[str, tuple[int, ...]]:
    """Returns, by hook, the steps whose pictures are made, but not all judged."""
    late = [hook for hook in hooks if isinstance(hook, LateHook)]
    found = {hook.name: tuple(hook.pending(run_folder, last_step)) for hook in late}
    return {name: steps for name, steps in found.items() if steps}


def record_report(report: EvalReport, metrics_file: MetricsFile, tracker: Callable[[], Tracker]) -> bool:
    """Logs a report at its own step, once; returns False if it was logged already or is not whole yet.

    Args:
        report: of any step, also of one before those logged last.
        metrics_file: is written before the tracker is told: it tells what is logged.
        tracker: gives the tracker, which is asked for only if there is something to log.
    """
    if not report.is_whole or metrics_file.has(report.step, report.hook, scalars(report)):
        return False
    view = tracker()  # which, if it opens only now, tells what the file has: not yet this
    metrics_file.put(report.step, report.hook, scalars(report))
    view.keep_best(best_of(report))
    view.log(report.step, {key: value for key, value in scalars(report).items() if value is not None})
    keys = report_keys(report.folder)
    if report.step == 0 and keys is not None:
        own = {key: metric.base for key, metric in report.metrics.items() if metric.base is not None}
        view.log_base(f"{BASE_JOB}-{keys.key[:_ID_CHARACTERS]}", own)
    if has_pictures(report):
        sheet = write_sheet(report.folder / "sheet.png", report)
        view.log_images(report.step, f"{report.hook}/sheet", {sheet: sheet.stem})
        panel = write_fixed_panel(report)
        view.log_images(report.step, f"{report.hook}/panel", {each.path: each.caption for each in panel})
        view.log_table(report.step, f"{report.hook}/answers", ANSWER_COLUMNS, answer_rows(report))
    return True


def write_results(
    folder: Path,
    run_name: str,
    reports: Sequence[EvalReport],
    *,
    rule: BestRule,
    failures: Sequence[EvalFailure],
    pending: Mapping[str, Sequence[int]],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """Writes summary.json, report.html and the failures; returns the summary.

    Args:
        folder: of the run.
        run_name: its name.
        reports: all so far.
        rule: which step is the best.
        failures: evaluations that failed.
        pending: what is still to be judged, as ``pending_steps`` gives it.
        facts: what the report says of the run under its title.
    """
    summary = summarize(run_name, reports, rule, failures, pending)
    write_json(folder / "summary.json", summary)
    write_failures(folder, failures)
    failed = {"failed": ", ".join(each.title for each in failures)} if failures else {}
    told = [f"{hook} at step {step}" for hook, steps in pending.items() for step in steps]
    unjudged = {"not judged whole yet": ", ".join(told)} if told else {}
    if reports:
        write_html_report(folder, reports, title=run_name, facts={**facts, **failed, **unjudged})
    return summary


def name_best(tracker: Tracker, run_folder: Path, best: int | None) -> None:
    """Has the tracker call the adapter of the best checkpoint so; nothing if there is none, or its file is gone.

    wandb calls what it is given last ``latest``, whatever it is told, so the newest checkpoint's adapter comes after.
    """
    checkpoints = run_folder / "checkpoints"
    folders = step_folders(checkpoints)
    if best is None or checkpoints / step_name(best) not in folders:
        if best is not None:
            logger.warning("The checkpoint of step %d is the best, but is gone: no adapter is called best.", best)
        return
    newest = int(folders[-1].name.removeprefix("step_"))
    for step, alias in [(best, "best"), *([(newest, "latest")] if newest != best else [])]:
        tracker.log_adapter(step, checkpoints / step_name(step) / "adapter" / ADAPTER_FILE, (alias, f"step-{step}"))


def newest_numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Returns the newest checkpoint's tuned values, and below ``base/`` the base's, for a tracker's summary."""
    newest = summary.get("newest")
    if not newest:
        return {}
    metrics = newest["metrics"]
    base = {f"base/{key}": value["base"] for key, value in metrics.items() if value["base"] is not None}
    return base | {key: value["tuned"] for key, value in metrics.items() if value["tuned"] is not None}


def best_numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Returns the best checkpoint's step and tuned values below ``best/``, for a tracker's summary."""
    best = summary.get("best")
    if not best:
        return {}
    values = {f"best/{key}": value["tuned"] for key, value in best["metrics"].items() if value["tuned"] is not None}
    return {"best/step": best["step"], **values}
