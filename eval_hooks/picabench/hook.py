"""PICABench at a checkpoint: edit, judge, measure, and report the change against the base."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.hook import Cadence, EvalContext, EvalReport, LateContext
from physedit.eval_hooks.judges.judge import Judge, RemoteJudge
from physedit.eval_hooks.picabench.benchmark import check_benchmark
from physedit.eval_hooks.picabench.edit_task import EditSettings
from physedit.eval_hooks.picabench.generate import edit_benchmark
from physedit.eval_hooks.picabench.input_copy import copy_inputs
from physedit.eval_hooks.picabench.judging import JudgeSettings
from physedit.eval_hooks.picabench.measure import MeasuringRules
from physedit.eval_hooks.picabench.measures import Measures, PicaBenchMeasures
from physedit.eval_hooks.picabench.reporting import Reporting
from physedit.eval_hooks.picabench.scoring import Scoring, Work
from physedit.eval_hooks.picabench.sides import Side, Sides
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import finished_reports, load_report

log = logging.getLogger(__name__)

_AreaFrame = Literal["input", "long_side_1024"]


class PicaBenchHook:
    """Evaluates a benchmark of PICABench's form: PICABench itself, or the embedded world in its schema.

    The pictures of the base are made once per fingerprint and shared by all runs through ``EvalContext.base_cache``.
    The hook leaves the denoiser's mode, the gradients' flags and the global random state as they were.
    """

    def __init__(
        self,
        *,
        name: str,
        benchmark: str,
        judge: Judge,
        cadence: Cadence,
        revision: str | None = None,
        editor: str | None = None,
        measures: Measures | None = None,
        level: str = PromptLevel.SUPERFICIAL,
        area_frame: _AreaFrame = "input",
        reference: bool = False,
        seed: int = 0,
        num_steps: int | None = None,
        guidance: float | None = None,
        batch_size: int = 1,
        limit: int | None = None,
        per_law: int | None = None,
        time_budget_s: float | None = None,
        keep_encoded: bool = False,
        judge_workers: int = 1,
        max_unanswered_share: float = 0.05,
        judge_time_budget_s: float | None = None,
        background: bool = False,
    ) -> None:
        """Keeps the settings; ``check`` looks at the files.

        Args:
            name: folder of the hook and first part of its metric keys.
            benchmark: parquet file, ``meta_info.json``, or folder with either; or ``OWNER/NAME`` on the hub.
            judge: answers the questions.
            cadence: when the hook is due.
            revision: of a benchmark on the hub: a commit hash, or a tag or branch that may move.
            editor: the weights of the editor, by which the paper's rows of the same base are found; None if not known.
            measures: which numbers are reported; None for PICABench's own.
            level: which of the three instructions is used.
            area_frame: what edit areas are given in, for a judge with the strict protocol: pixels of the input, or
                the frame whose long side is 1024. The published script takes the former, and so does the official one.
            reference: score the unchanged inputs too, once for all runs, as what an editor gets that does nothing.
            seed: decides the noise of every item.
            num_steps: denoising steps of an edit; None for the editor's own.
            guidance: guidance scale of the pipeline; None for the editor's own.
            batch_size: pictures edited at once; at 1 no kernel can make a picture depend on its neighbours.
            limit: this many items, spread over the benchmark; None for all.
            per_law: this many items of every law, the same in every run; None for all.
            time_budget_s: seconds after which no further edits of a checkpoint begin; None for no end.
            keep_encoded: keep the items' text states and latents on the disk, beside the base's evaluations.
            judge_workers: questions asked at once.
            max_unanswered_share: share of questions without yes or no above which the evaluation fails.
            judge_time_budget_s: seconds after which no further question about a folder of pictures is asked; what is
                left can be judged later. None for no end.
            background: judge while training goes on; the report comes when it is ready.

        Raises:
            ValueError: a setting out of range, with its name.
        """
        counts = {
            "num_steps": num_steps, "batch_size": batch_size, "judge_workers": judge_workers, "limit": limit,
            "per_law": per_law,
        }  # fmt: skip
        budgets = {"time_budget_s": time_budget_s, "judge_time_budget_s": judge_time_budget_s}
        _refuse_out_of_range(counts, max_unanswered_share, budgets)
        if level not in tuple(PromptLevel):
            raise ValueError(f"{name}.level is {level!r}; expected one of {', '.join(PromptLevel)}.")
        if area_frame not in get_args(_AreaFrame):
            raise ValueError(f"{name}.area_frame is {area_frame!r}; expected input or long_side_1024.")
        if limit is not None and per_law is not None:
            raise ValueError(f"{name}.limit={limit} and {name}.per_law={per_law} both choose items: set one to null.")
        self._name, self._cadence = name, cadence
        edits = EditSettings(seed, num_steps, guidance, PromptLevel(level), batch_size, time_budget_s, keep_encoded)
        self._sides = Sides(name, benchmark, revision, limit, per_law, edits, editor)
        self._has_reference, self._is_background = reference, background
        plain = MeasuringRules.PLAIN if area_frame == "input" else MeasuringRules.STRICT
        self._scoring = Scoring(
            judge=judge,
            measures=measures or PicaBenchMeasures(),
            rules=MeasuringRules.OFFICIAL if judge.protocol.name == "official" else plain,
            settings=JudgeSettings(judge_workers, max_unanswered_share, judge_time_budget_s),
        )
        self._reporting = Reporting(name, self._sides, self._scoring, reference)
        self._made: set[Path] = set()
        """Shared sides whose pictures this process has made for ``finish``."""

    @property
    def name(self) -> str:
        """Names the hook's folder and the first part of its metric keys."""
        return self._name

    @property
    def cadence(self) -> Cadence:
        """When the trainer calls ``run``."""
        return self._cadence

    @property
    def is_background(self) -> bool:
        """True if the trainer is to call ``generate`` in place of ``run``, and ``finish`` beside training."""
        return self._is_background

    def check(self) -> None:
        """Verifies the benchmark's files without decoding a picture or asking the judge; downloads them if need be.

        Raises:
            DatasetLayoutError: the benchmark is not there, not in PICABench's schema, or asks what the measures do not
                know.
            DatasetRowError: a row has no instruction of the level, or questions that cannot be understood.
        """
        num_items = check_benchmark(self._sides.place, self._sides.edits.level, self._scoring.measures.kind_of)
        log.info(
            "%s: %d items in %s, judge %s", self._name, num_items, self._sides.benchmark, self._scoring.judge.judge_id
        )

    def finished_reports(self, run_folder: Path, last_step: int) -> tuple[EvalReport, ...]:
        """Returns the reports of steps up to ``last_step`` that an earlier start of this run has written.

        Reports about another benchmark, or made with other edit settings, judge or measures, are left out.
        """
        return finished_reports(run_folder / "eval" / self._name, self._reporting.settings_key, last_step)

    def run(self, context: EvalContext) -> EvalReport:
        """Returns the change of the adapter at ``context.step`` against the base; step 0 is the base itself.

        Called on every rank; all get the same report. A finished evaluation of the same weights is only read, unless
        its pictures or answers are no longer what they were: then those that differ are made anew.

        Raises:
            TooManyUnanswered: the judge left too many questions without yes or no.
            OutputsMismatch: pictures were renamed, removed or added after editing.
            FailedElsewhere: another rank failed.
        """
        started, work = time.monotonic(), self._work(context)
        base = self._sides.base(context)
        if base.folder not in self._scoring.done:
            self._make_base(context, base)
        reference = self._sides.input_copy(context) if self._has_reference else None
        if reference is not None and reference.folder not in self._scoring.done:
            self._make_input_copy(context, reference, base)
        tuned = self._sides.tuned(context)
        self._forget_unknown(context, tuned)
        is_finished = self._reporting.is_finished(work.ranks, base, tuned)
        if context.step > 0 and not is_finished:
            edit_benchmark(context, self._sides.task(tuned, twin=base.folder))
        # All pictures are there from here on: where the judge refuses, it can be done later without the editor.
        self._scoring.score_shared(work, base)
        if reference is not None:
            self._scoring.score_shared(work, reference)
        if is_finished:
            return load_report(tuned.folder)
        if context.step > 0:
            self._scoring.score(work, tuned, earlier=(base.folder,))
        return self._reporting.write(work.ranks, base, tuned, reference, step=context.step, started=started)

    def generate(self, context: EvalContext) -> None:
        """Makes the pictures of ``context.step``, and those of the base if need be; every rank calls it.

        ``finish`` may be judging earlier steps meanwhile, in a thread of one of them.
        """
        base = self._sides.base(context)
        if base.folder not in self._made:
            self._make_base(context, base)
            if self._has_reference:
                self._make_input_copy(context, self._sides.input_copy(context), base)
            self._made.add(base.folder)
        if context.step > 0:
            tuned = self._sides.tuned(context)
            self._forget_unknown(context, tuned)
            edit_benchmark(context, self._sides.task(tuned, twin=base.folder))

    def pending(self, run_folder: Path, last_step: int) -> tuple[int, ...]:
        """Returns the steps up to ``last_step`` whose pictures are made, but not all judged and reported."""
        steps = [step for step in self._sides.made_steps(run_folder) if step > 0 or self._cadence.at_start]
        return tuple(step for step in steps if step <= last_step and self._reporting.is_pending(run_folder, step))

    def finish(self, context: LateContext) -> EvalReport:
        """Judges, measures and reports the pictures of ``context.step``; needs no editor, and no other rank.

        Raises:
            OutputsMismatch: the pictures are not all made, or with other settings than the hook's.
            TooManyUnanswered, JudgeRefusesAll: as ``run``.
        """
        started = time.monotonic()
        ranks = Ranks(is_beside_others=True)
        work = Work(ranks, context.base_cache / self._name, self._labelled(context.progress))
        base = self._sides.made(context.run_folder, 0)
        self._scoring.score_shared(work, base)
        reference = self._sides.made_input_copy(context.run_folder) if self._has_reference else None
        if reference is not None:
            self._scoring.score_shared(work, reference)
        tuned = self._sides.made(context.run_folder, context.step)
        if context.step > 0:
            self._scoring.score(work, tuned, earlier=(base.folder,))
        return self._reporting.write(ranks, base, tuned, reference, step=context.step, started=started)

    def stop(self) -> None:
        """Has a judge on a server not be asked any more, because the process ends."""
        if isinstance(self._scoring.judge, RemoteJudge):
            self._scoring.judge.stop()

    def _make_base(self, context: EvalContext, base: Side) -> None:
        self._scoring.fetch(self._work(context), base)
        with context.without_adapter():
            edit_benchmark(context, self._sides.task(base, twin=None))

    def _make_input_copy(self, context: EvalContext, reference: Side, base: Side) -> None:
        work = self._work(context)
        self._scoring.fetch(work, reference)
        work.ranks.first_alone(reference.folder, partial(copy_inputs, self._sides.task(reference, twin=base.folder)))

    def _forget_unknown(self, context: EvalContext, tuned: Side) -> None:
        """Removes earlier edits of a checkpoint if it cannot be told whether its adapter made them."""
        if context.step > 0 and not context.adapter_id:
            ranks = self._work(context).ranks
            ranks.first_alone(tuned.folder.parent, lambda: shutil.rmtree(tuned.folder, ignore_errors=True))

    def _work(self, context: EvalContext) -> Work:
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        return Work(ranks, context.base_cache / self._name, self._labelled(context.progress))

    def _labelled(self, progress: Callable[[int, int, str], None]) -> Callable[[int, int, str], None]:
        return lambda done, total, label: progress(done, total, f"{self._name}: {label}")


def _refuse_out_of_range(
    counts: Mapping[str, int | None], max_unanswered_share: float, budgets: Mapping[str, float | None]
) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1.")
    if not 0 <= max_unanswered_share < 1:
        raise ValueError(f"max_unanswered_share is {max_unanswered_share}; expected 0 up to but not including 1.")
    for name, seconds in budgets.items():
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{name} is {seconds}; expected more than 0, or null for no end.")
