"""What happens around the loop's steps: checkpoints, hooks, numbers, signals."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalContext, EvalHook, EvalReport, weights_digest
from physedit.eval_hooks.panel import write_sheet
from physedit.eval_hooks.report import write_html_report
from physedit.models.backbone import Backbone
from physedit.models.lora import adapter_state, swapped, without_adapter
from physedit.train.checkpoint import CheckpointStore, Snapshot
from physedit.train.loop import NonFiniteLoss, Stopped, Trainer
from physedit.train.processes import Processes
from physedit.train.progress import ProgressBar
from physedit.train.signals import StopFlag
from physedit.train.state import Progress, optimizer_tensors
from physedit.train.summary import best_step, scalars, summarize
from physedit.train.tracker import MetricsFile, Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """When to save and what to keep."""

    run_name: str
    num_steps: int
    save_every: int
    keep: int
    best_metric: str | None
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
    processes: Processes
    reports: list[EvalReport] = field(default_factory=list)

    @property
    def accelerator(self) -> Accelerator:
        """The run's processes."""
        return self.trainer.accelerator

    @property
    def backbone(self) -> Backbone:
        """The editor."""
        return self.trainer.backbone

    def is_stopping(self) -> bool:
        """True once any rank got a signal. Ranks agree, so that none waits for another in a collective."""
        agreed = self.processes.largest(self.stop.signal_number or 0)
        if agreed:
            self.stop.signal_number = agreed
        return agreed > 0

    def save_is_due(self, step: int) -> bool:
        """True at the cadence of ``checkpoint.every`` and wherever a hook evaluates: what is judged is on disk."""
        every = self.policy.save_every
        return (every > 0 and step % every == 0) or bool(self.due(step))

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint and removes old ones; all ranks return when it is complete.

        Raises:
            NonFiniteLoss: the adapter is not finite, though the loss was; on every rank.
        """
        live = adapter_state(self.backbone.denoiser)
        if not bool(torch.stack([value.isfinite().all() for value in live.values()]).all()):
            raise NonFiniteLoss(
                f"The adapter is not finite after step {progress.step}, so it is not saved; the newest checkpoint is "
                f"the last good one. Lower optimizer.lr."
            )
        if self.accelerator.is_main_process:
            self.store.save(self._snapshot(progress))
            protected = {
                best_step(self.reports, self.policy.best_metric),
                max((r.step for r in self.reports), default=0),
            }
            self.store.prune(self.policy.keep, {step for step in protected if step})
        self.accelerator.wait_for_everyone()

    def evaluate(self, step: int) -> None:
        """Runs the hooks due at ``step`` and records what they found."""
        for hook in self.due(step):
            report = self._run_hook(hook, step)
            self.reports = [r for r in self.reports if (r.hook, r.step) != (hook.name, step)] + [report]
            if self.accelerator.is_main_process:
                self.metrics_file.append(step, scalars(report))
                self.tracker.log(step, {k: v for k, v in scalars(report).items() if v is not None})
                sheet = write_sheet(report.folder / "sheet.png", report)
                self.tracker.log_images(step, f"{report.hook}/sheet", [sheet])
                self.write_results()
        self.accelerator.wait_for_everyone()

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
        summary = summarize(self.policy.run_name, self.reports, self.policy.best_metric)
        write_json(self.folder / "summary.json", summary)
        if self.reports:
            write_html_report(self.folder, self.reports, title=self.policy.run_name, facts=self.policy.facts)
        return summary

    def due(self, step: int) -> list[EvalHook]:
        """Returns the hooks that evaluate ``step``."""
        return [hook for hook in self.hooks if hook.cadence.is_due(step, self.policy.num_steps)]

    def _snapshot(self, progress: Progress) -> Snapshot:
        live = {name: value.cpu() for name, value in adapter_state(self.backbone.denoiser).items()}
        average = self.trainer.average
        adapter = live if average is None else {name: value.cpu() for name, value in average.values.items()}
        return Snapshot(progress, adapter, live, optimizer_tensors(self.backbone.denoiser, self.trainer.optimizer))

    def _run_hook(self, hook: EvalHook, step: int) -> EvalReport:
        denoiser = self.backbone.denoiser
        average = self.trainer.average
        context = EvalContext(
            step=step,
            backbone=self.backbone,
            denoiser=denoiser,
            without_adapter=lambda: without_adapter(denoiser),
            run_folder=self.folder,
            base_cache=self.base_cache,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            barrier=self.accelerator.wait_for_everyone,
            progress=self._hook_progress,
            device=self.accelerator.device,
            adapter_id=weights_digest(adapter_state(denoiser) if average is None else average.values),
        )
        with nullcontext() if average is None else swapped(denoiser, average.values):
            return hook.run(context)

    def _hook_progress(self, done: int, total: int, label: str) -> None:
        self.bar.hook(done, total, label)
        if self.stop:
            raise Stopped(
                "Stopped during an evaluation; what it has so far is kept, and so is the checkpoint it is of."
            )
