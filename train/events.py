"""What happens around the loop's steps: checkpoints, hooks, numbers, what is asked from outside."""

import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalContext, EvalHook, EvalReport, weights_digest
from physedit.eval_hooks.panel import has_pictures, write_sheet
from physedit.eval_hooks.report import write_html_report
from physedit.models.adapter_file import ADAPTER_FILE
from physedit.models.backbone import Backbone
from physedit.models.lora import without_adapter
from physedit.train.checkpoint import CheckpointStore, Snapshot, step_name
from physedit.train.failures import EvalFailure, write_failures
from physedit.train.loop import NonFiniteLoss, Trainer
from physedit.train.processes import Processes
from physedit.train.progress import ProgressBar
from physedit.train.signals import Request, RequestFiles, StopFlag, Stopped
from physedit.train.state import Progress
from physedit.train.summary import BestRule, best_steps, scalars, summarize
from physedit.train.tracker import MetricsFile, Tracker
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
    base_cache: Path
    store: CheckpointStore
    hooks: Sequence[EvalHook]
    metrics_file: MetricsFile
    tracker: Tracker
    bar: ProgressBar
    stop: StopFlag
    files: RequestFiles | None
    """On rank 0."""
    uploads: Uploads | None
    """On rank 0, if checkpoints are to be copied."""
    reports: list[EvalReport] = field(default_factory=list)
    failures: list[EvalFailure] = field(default_factory=list)

    @property
    def accelerator(self) -> Accelerator:
        """The run's processes."""
        return self.trainer.accelerator

    @property
    def backbone(self) -> Backbone:
        """The editor."""
        return self.trainer.backbone

    @property
    def processes(self) -> Processes:
        """Their agreement."""
        return self.trainer.processes

    def request(self) -> Request:
        """Returns what is asked of any rank. Ranks agree, so that none waits for another in a collective."""
        number = self.stop.signal_number or 0
        asked = Request.NONE if self.files is None else self.files.asked()
        if asked is Request.STOP:
            number = number or signal.SIGTERM
        saves = asked is Request.SAVE or self.stop.save_is_asked
        agreed = self.processes.largest(Request.STOP + number if number else Request.SAVE if saves else Request.NONE)
        if agreed > Request.STOP:
            self.stop.signal_number = agreed - Request.STOP
            return Request.STOP
        if agreed == Request.SAVE:
            self.stop.save_is_asked = False
        return Request(agreed)

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
        for hook in self.due(step):
            report, errors = self._attempt(hook, step)
            self.failures = [each for each in self.failures if (each.hook, each.step) != (hook.name, step)]
            if report is None:
                self._record_failure(hook, step, errors)
                continue
            self.reports = [r for r in self.reports if (r.hook, r.step) != (hook.name, step)] + [report]
            if self.accelerator.is_main_process:
                self.metrics_file.append(step, scalars(report))
                self.tracker.log(step, {k: v for k, v in scalars(report).items() if v is not None})
                if has_pictures(report):
                    sheet = write_sheet(report.folder / "sheet.png", report)
                    self.tracker.log_images(step, f"{report.hook}/sheet", [sheet])
                self.write_results()
        self.processes.wait()

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
        """Moves the bar."""
        self.bar.advance(step)

    def write_results(self) -> Mapping[str, Any]:
        """Writes summary.json and report.html from all reports so far; returns the summary."""
        summary = summarize(self.policy.run_name, self.reports, self.policy.best, self.failures)
        write_json(self.folder / "summary.json", summary)
        write_failures(self.folder, self.failures)
        failed = {"failed": ", ".join(each.title for each in self.failures)} if self.failures else {}
        if self.reports:
            facts = {**self.policy.facts, **failed}
            write_html_report(self.folder, self.reports, title=self.policy.run_name, facts=facts)
        return summary

    def due(self, step: int) -> list[EvalHook]:
        """Returns the hooks that evaluate ``step``."""
        return [hook for hook in self.hooks if hook.cadence.is_due(step, self.policy.num_steps)]

    def _write(self, snapshot: Snapshot) -> None:
        if not self.accelerator.is_main_process:
            return
        path = self.store.save(snapshot)
        if self.uploads is not None:
            self.uploads.add(path)
        protected = {*best_steps(self.reports, self.policy.best)[: self.policy.keep_best]}
        protected.add(max((r.step for r in self.reports), default=0))
        if self.uploads is not None:
            protected |= {int(name.rpartition("_")[2]) for name in self.uploads.waiting()}
        self.store.prune(self.policy.keep, protected)

    def _record_failure(self, hook: EvalHook, step: int, errors: Sequence[Exception]) -> None:
        if self.policy.stops_at_eval_failure:
            raise errors[0]
        failure = EvalFailure(hook.name, step, f"{type(errors[-1]).__name__}: {errors[-1]}")
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

    def _attempt(self, hook: EvalHook, step: int) -> tuple[EvalReport | None, list[Exception]]:
        """Runs ``hook`` on the adapter that is shipped; what takes all ranks but may not fail is around the attempt."""
        engine, average, denoiser = self.trainer.engine, self.trainer.average, self.backbone.denoiser
        adapter_id = weights_digest(engine.adapter() if average is None else average.values)
        passes = denoiser if engine.passes_take_all_ranks else None
        with nullcontext() if average is None else engine.swapped(average.values):
            return self.processes.attempt(lambda: hook.run(self._context(step, adapter_id)), passes)

    def _context(self, step: int, adapter_id: str) -> EvalContext:
        denoiser = self.backbone.denoiser
        return EvalContext(
            step=step,
            backbone=self.backbone,
            denoiser=denoiser,
            without_adapter=lambda: without_adapter(denoiser),
            run_folder=self.folder,
            base_cache=self.base_cache,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            barrier=self.processes.wait,
            progress=self._hook_progress,
            device=self.accelerator.device,
            adapter_id=adapter_id,
            adapter_file=None if step == 0 else self.store.folder / step_name(step) / "adapter" / ADAPTER_FILE,
        )

    def _hook_progress(self, done: int, total: int, label: str) -> None:
        self.bar.hook(done, total, label)
        asked = Request.NONE if self.files is None else self.files.asked()
        if asked is Request.SAVE:
            self.stop.save_is_asked = True
        if asked is Request.STOP:
            self.stop.signal_number = signal.SIGTERM
        if self.stop:
            raise Stopped(
                "Stopped during an evaluation; what it has so far is kept, and so is the checkpoint it is of."
            )
