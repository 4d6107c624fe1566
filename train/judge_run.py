"""Finishing the evaluations of a run whose pictures are made, but not all judged: ``physedit judge RUN``."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from physedit.eval_hooks.hook import EvalHook, EvalReport, LateContext, LateHook
from physedit.eval_hooks.judges.judge import JudgeUnavailable
from physedit.eval_hooks.picabench.judging import TooManyUnanswered
from physedit.eval_hooks.picabench.manifest import OutputsMismatch
from physedit.train.assemble import build_checked, build_hooks
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError, options
from physedit.train.failures import EvalFailure, read_failures
from physedit.train.metrics_file import MetricsFile
from physedit.train.results import (
    best_numbers,
    facts_of,
    name_best,
    newest_numbers,
    pending_steps,
    record_report,
    write_results,
)
from physedit.train.run_folder import lock_run_folder
from physedit.train.saved_adapter import overrides_of
from physedit.train.summary import best_rule
from physedit.train.tracker import Tracker

logger = logging.getLogger(__name__)


@dataclass
class JudgedRun:
    """What became of a run's evaluations.

    Attributes:
        reports: all of the run, by hook and step.
        finished: which of them were judged to the end now, as HOOK at step STEP.
        logged: how many were logged now.
        left: what is still to be judged, and why; None if nothing is.
    """

    reports: list[EvalReport] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    logged: int = 0
    left: str | None = None


@dataclass
class _Run:
    folder: Path
    config: DictConfig
    hooks: Sequence[EvalHook]

    @property
    def num_steps(self) -> int:
        return int(self.config.num_steps)

    def pending(self) -> dict[str, tuple[int, ...]]:
        return pending_steps(self.hooks, self.folder, self.num_steps)


def pending_evaluations(folder: Path, overrides: Sequence[str], config_dir: Path | None) -> dict[str, tuple[int, ...]]:
    """Returns the steps, by hook, that ``judge_run`` would judge; asks no one and writes nothing.

    Raises:
        ConfigError: as ``judge_run``.
    """
    return _open(folder, overrides, config_dir).pending()


def judge_run(
    folder: Path,
    overrides: Sequence[str],
    config_dir: Path | None,
    progress: Callable[[int, int, str], None],
) -> JudgedRun:
    """Judges, measures and reports what a run left unjudged, and logs it at its steps, each once.

    It takes no model and no accelerator. After an outage it can be called again, and goes on.

    Args:
        folder: of the run.
        overrides: beside those of the run, such as ``judge.base_url``.
        config_dir: as for ``compose_config``.
        progress: called with (done, total, label) after every answer.

    Raises:
        ConfigError: the overrides do not compose, the run has no such evaluation, or another process is writing it.
    """
    run = _open(folder, overrides, config_dir)
    with lock_run_folder(folder):
        result = JudgedRun()
        failures = read_failures(folder, run.num_steps)
        for hook in run.hooks:
            if isinstance(hook, LateHook) and result.left is None:
                failures = _finish(hook, run, result, failures, progress)
        result.reports = [report for hook in run.hooks for report in hook.finished_reports(folder, run.num_steps)]
        _record(run, result, failures)
        still = run.pending()
        if still and result.left is None:
            result.left = _in_words(still)
    return result


def _open(folder: Path, overrides: Sequence[str], config_dir: Path | None) -> _Run:
    saved = overrides_of(folder)
    _refuse_settings_of_nobody(folder, saved, overrides)
    config = compose_config([*_kept(saved, overrides), *overrides], config_dir=config_dir)
    hooks = build_hooks(config)
    if not any(isinstance(hook, LateHook) for hook in hooks):
        raise ConfigError(f"The run in {folder} has no evaluation with a judge, so there is nothing to judge.")
    return _Run(folder, config, hooks)


def _refuse_settings_of_nobody(folder: Path, saved: Sequence[str], given: Sequence[str]) -> None:
    """Refuses settings of a judge for a run that was made without one, if none is chosen."""
    chosen = [each for each in (*saved, *given) if _chosen(each)[0] == "judge"]
    settings = [each for each in given if _chosen(each)[0].startswith("judge.")]
    if settings and chosen and chosen[-1].partition("=")[2] == "none":
        raise ConfigError(
            f"{settings[0]} has no effect, because the run in {folder} has no judge (judge=none). Choose one beside "
            f"it: judge=NAME ({', '.join(name for name in options('judge') if name != 'none')})."
        )


def _kept(saved: Sequence[str], given: Sequence[str]) -> list[str]:
    """Returns the run's overrides without the settings of a judge that ``given`` replaces by another."""
    replaced = {place for group, place in map(_chosen, given) if group == "judge"}
    return [
        each
        for each in saved
        if not (_chosen(each)[1] in replaced or any(_chosen(each)[0].startswith(f"{place}.") for place in replaced))
    ]


def _chosen(override: str) -> tuple[str, str]:
    """Returns the key of an override, and the place in the config at which it puts a group."""
    key, _, place = override.lstrip("+~").split("=", 1)[0].partition("@")
    return key, place or key


def _finish(
    hook: LateHook,
    run: _Run,
    result: JudgedRun,
    failures: Sequence[EvalFailure],
    progress: Callable[[int, int, str], None],
) -> list[EvalFailure]:
    """Judges the hook's steps until the judge leaves; returns the failures that are left."""
    left = list(failures)
    for step in hook.pending(run.folder, run.num_steps):
        title = f"{hook.name} at step {step}"
        try:
            report = hook.finish(LateContext(step, run.folder, run.folder.parent / "base_cache", progress))
        except (JudgeUnavailable, TooManyUnanswered, OutputsMismatch) as error:
            left = [each for each in left if (each.hook, each.step) != (hook.name, step)]
            left.append(EvalFailure(hook.name, step, f"{type(error).__name__}: {error}"))
            result.left = f"{title}: {error}"
            return left
        left = [each for each in left if (each.hook, each.step) != (hook.name, step)]
        if not report.is_whole:
            num_scored = report.num_questions - report.num_unscored
            result.left = f"{title}: {num_scored} of {report.num_questions} questions are scored, then the judge left"
            return left
        result.finished.append(title)
    return left


def _record(run: _Run, result: JudgedRun, failures: Sequence[EvalFailure]) -> None:
    """Writes what the run's folder tells of its evaluations, and brings the tracker up to date."""
    view = _View(run.folder)
    exit_code = 1
    try:
        metrics_file = MetricsFile(run.folder / "metrics.jsonl")
        for report in sorted(result.reports, key=lambda report: report.step):
            result.logged += record_report(report, metrics_file, view.tracker)
        summary = write_results(
            run.folder,
            str(run.config.run_name),
            result.reports,
            rule=best_rule(run.config),
            failures=failures,
            pending=run.pending(),
            facts=facts_of(run.config),
        )
        exit_code = 0
    finally:
        view.finish(summary if exit_code == 0 else {}, exit_code)


@dataclass
class _View:
    """The run's tracker, opened under the run's own id when there is something to log."""

    folder: Path
    opened: Tracker | None = None

    def tracker(self) -> Tracker:
        if self.opened is None:
            saved = OmegaConf.load(self.folder / "config.yaml")
            assert isinstance(saved, DictConfig)
            tracker: Tracker = build_checked("tracker", saved.tracker)
            plain = OmegaConf.to_container(saved, resolve=True)
            assert isinstance(plain, dict)
            tracker.start(self.folder, str(saved.run_name), {str(key): value for key, value in plain.items()})
            self.opened = tracker
        return self.opened

    def finish(self, summary: dict[str, Any], exit_code: int) -> None:
        if self.opened is not None:
            name_best(self.opened, self.folder, (summary.get("best") or {}).get("step"))
            self.opened.finish(newest_numbers(summary) | best_numbers(summary), exit_code)


def _in_words(pending: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{hook} at step {step}" for hook, steps in pending.items() for step in steps)
