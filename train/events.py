"""What happens around the loop's steps: checkpoints, hooks, numbers, what is asked from outside."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from physedit.eval_hooks.hook import EvalHook, EvalReport, LateHook
from physedit.models.adapter_file import ADAPTER_FILE
from physedit.train.asking import Asking
from physedit.train.checkpoint import CheckpointStore, Snapshot
from physedit.train.failures import EvalFailure
from physedit.train.hook_runs import HookRunner
from physedit.train.late import LateReports
from physedit.train.loop import NonFiniteLoss, Trainer
from physedit.train.metrics_file import MetricsFile
from physedit.train.processes import Processes
from physedit.train.progress import ProgressBar
from physedit.train.results import name_best, pending_steps, record_report, write_results
from physedit.train.signals import Request, Stopped
from physedit.train.state import Progress
from physedit.train.summary import BestRule, best_steps
from physedit.train.tracker import Tracker
from physedit.train.upload import Uploads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """When to save and what to keep."""

    run_name: str
    num_steps: int
    save_every: int
    keep: int
    keep_best: int
    best: BestRule
    stops_at_eval_failure: bool
    facts: Mapping[str, str]
    """What the report says of the run under its title."""


@dataclass
class RunEvents:
    """The loop's ``Events`` for a run folder. Rank 0 writes; every rank runs the hooks."""

    policy: Policy
    trainer: Trainer
    folder: Path
    store: CheckpointStore
    hooks: Sequence[EvalHook]
    runner: HookRunner
    metrics_file: MetricsFile
    tracker: Tracker
    bar: ProgressBar
    asking: Asking
    uploads: Uploads | None
    """On rank 0, if checkpoints are to be copied."""
    late: LateReports
    """What is judged beside training; rank 0 alone hands over to it."""
    reports: list[EvalReport] = field(default_factory=list)
    failures: list[EvalFailure] = field(default_factory=list)

    @property
    def accelerator(self) -> Accelerator:
        """The run's processes."""
        return self.trainer.accelerator

    @property
    def processes(self) -> Processes:
        """Their agreement."""
        return self.trainer.processes

    def request(self) -> Request:
        """See ``Asking.agreed``."""
        return self.asking.agreed()

    def save_is_due(self, step: int) -> bool:
        """True at the cadence of ``checkpoint.every`` and wherever a hook evaluates: what is judged is on disk."""
        every = self.policy.save_every
        return (every > 0 and step % every == 0) or bool(self.due(step))

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint and removes old ones; all ranks return when it is complete.

        Raises:
            NonFiniteLoss: the adapter is not finite, though the loss was; on every rank.
            OSError: on rank 0, the disk is full or not writable; older checkpoints are untouched.
            FailedElsewhere: on the other ranks, rank 0 could not write it.
        """
        live = self.trainer.engine.adapter()
        if not bool(torch.stack([value.isfinite().all() for value in live.values()]).all()):
            raise NonFiniteLoss(
                f"The adapter is not finite after step {progress.step}, so it is not saved; the newest checkpoint is "
                f"the last good one. Lower optimizer.lr."
            )
        snapshot = self._snapshot(progress, live)
        self.processes.together(lambda: self._write(snapshot))

    def evaluate(self, step: int) -> None:
        """Runs the hooks due at ``step`` and records what they found, or that they failed.

        Raises:
            Exception: what a hook raised, if failures are to stop the run.
        """
        due = self.due(step)
        for hook in due:
            report, errors = self.runner.attempt(hook, step)
            if errors:
                self._record_failure(hook.name, step, errors)
            elif report is not None:
                self._record(report)
            elif isinstance(hook, LateHook) and self.accelerator.is_main_process:
                self.late.submit(hook, step)
        self.collect()
        if due:
            self.processes.wait()

    def go_on(self, step: int) -> None:
        """Takes up, at the start of a run that goes on at ``step``, what an earlier start left unjudged or unlogged.

        Rank 0 calls it. What a hook evaluates at ``step`` itself comes with ``evaluate``.
        """
        at_once = {hook.name for hook in self.due(step)}
        for report in self.reports:
            if report.step < step or report.hook not in at_once:
                record_report(report, self.metrics_file, lambda: self.tracker)
        for hook in self.hooks:
            if isinstance(hook, LateHook) and hook.is_background:
                for earlier in hook.pending(self.folder, step):
                    self.late.submit(hook, earlier)

    def collect(self) -> None:
        """Records what has been judged beside training since the last call; does not wait.

        Raises:
            Exception: what a hook raised there, on rank 0, if failures are to stop the run.
        """
        arrivals = self.late.arrived()
        for arrival in arrivals:
            if arrival.report is not None:
                self._record(arrival.report)
            elif arrival.error is not None:
                self._record_failure(arrival.hook, arrival.step, [arrival.error])
        if arrivals:
            self._prune()  # checkpoints that were kept until it was known which is the best

    def finish(self) -> None:
        """Waits, after the last step, for what is still judged; all ranks return when it is recorded.

        Raises:
            Stopped: it was asked to; the rest can be judged later.
        """
        self.processes.together(self._await_late)

    def log(self, step: int, metrics: dict[str, float], num_samples: int, seconds: float) -> None:
        """Adds a line to metrics.jsonl and to the tracker."""
        if not self.accelerator.is_main_process:
            return
        samples_per_s = num_samples / max(seconds, 1e-9)
        line = metrics | {"time/samples_per_s": samples_per_s}
        self.metrics_file.append(step, line)
        self.tracker.log(step, line)
        self.bar.numbers(step, metrics["train/loss"], samples_per_s)

    def advance(self, step: int) -> None:
        """Moves the bar, and records what was judged meanwhile."""
        self.bar.advance(step)
        self.collect()

    def write_results(self) -> Mapping[str, Any]:
        """Writes summary.json and report.html from all reports so far; returns the summary."""
        return write_results(
            self.folder,
            self.policy.run_name,
            self.reports,
            rule=self.policy.best,
            failures=self.failures,
            pending=pending_steps(self.hooks, self.folder, self.policy.num_steps),
            facts=self.policy.facts,
        )

    def due(self, step: int) -> list[EvalHook]:
        """Returns the hooks that evaluate ``step``."""
        return [hook for hook in self.hooks if hook.cadence.is_due(step, self.policy.num_steps)]

    def _write(self, snapshot: Snapshot) -> None:
        if not self.accelerator.is_main_process:
            return
        path = self.store.save(snapshot)
        step = snapshot.progress.step
        self.tracker.log_adapter(step, path / "adapter" / ADAPTER_FILE, ("latest", f"step-{step}"))
        if self.uploads is not None:
            self.uploads.add(path)
        self._prune()

    def _prune(self) -> None:
        """Removes old checkpoints, but none that may still be the best one or is still to be copied."""
        protected = {*best_steps(self.reports, self.policy.best)[: self.policy.keep_best]}
        protected |= {max((r.step for r in self.reports), default=0), *self.late.open_steps}
        for steps in pending_steps(self.hooks, self.folder, self.policy.num_steps).values():
            protected |= {*steps}  # which of them is the best is not known yet
        if self.uploads is not None:
            protected |= {int(name.rpartition("_")[2]) for name in self.uploads.waiting()}
        self.store.prune(self.policy.keep, protected)

    def _record(self, report: EvalReport) -> None:
        self._forget_failure(report.hook, report.step)
        others = [r for r in self.reports if (r.hook, r.step) != (report.hook, report.step)]
        self.reports = [*others, report]
        if self.accelerator.is_main_process:
            record_report(report, self.metrics_file, lambda: self.tracker)
            if not report.is_whole:
                logger.warning(
                    "%s at step %d: %d of %d questions are scored; training goes on, and its numbers are logged when "
                    "the rest is: physedit judge %s",
                    report.hook, report.step, report.num_questions - report.num_unscored, report.num_questions,
                    self.folder,
                )  # fmt: skip
            self.write_results()

    def _forget_failure(self, hook: str, step: int) -> None:
        self.failures = [each for each in self.failures if (each.hook, each.step) != (hook, step)]

    def _await_late(self) -> None:
        if not self.accelerator.is_main_process:
            return
        if self.late.num_open:
            logger.info("All steps are done; %d evaluations are still being judged.", self.late.num_open)
        while self.late.num_open:
            self.late.wait(self.asking.stops_here)
            self.collect()
            if self.late.num_open and self.asking.stop:
                raise Stopped(f"Stopped before all was judged; physedit judge {self.folder} does the rest.")
        self._name_best()

    def _name_best(self) -> None:
        """Has the tracker call the best checkpoint's adapter so, once all that is measured of this run is known."""
        name_best(self.tracker, self.folder, next(iter(best_steps(self.reports, self.policy.best)), None))

    def _record_failure(self, hook: str, step: int, errors: Sequence[Exception]) -> None:
        if self.policy.stops_at_eval_failure:
            raise errors[0]
        self._forget_failure(hook, step)
        failure = EvalFailure(hook, step, f"{type(errors[-1]).__name__}: {errors[-1]}")
        self.failures.append(failure)
        if self.accelerator.is_main_process:
            logger.error(
                "The evaluation %s failed and is marked so; training goes on. %s", failure.title, failure.error,
                exc_info=errors[0],
            )  # fmt: skip
            self.write_results()

    def _snapshot(self, progress: Progress, adapter: Mapping[str, Tensor]) -> Snapshot:
        live = {name: value.cpu() for name, value in adapter.items()}
        average = self.trainer.average
        shipped = live if average is None else {name: value.cpu() for name, value in average.values.items()}
        return Snapshot(progress, shipped, live, self.trainer.engine.optimizer_tensors())
