"""PICABench at a checkpoint: edit, judge, measure, and report the change against the base."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, get_args

from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.files import digest_of
from physedit.eval_hooks.hook import Cadence, EvalContext, EvalReport
from physedit.eval_hooks.judges.judge import Judge
from physedit.eval_hooks.picabench.base_shelf import BaseShelf
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem, benchmark_digest, check_benchmark, load_benchmark
from physedit.eval_hooks.picabench.benchmark_place import find_benchmark, place_in_words
from physedit.eval_hooks.picabench.comparison import Comparison, write_report
from physedit.eval_hooks.picabench.edit_task import EditSettings, EditTask
from physedit.eval_hooks.picabench.folder import has_its_pictures, not_edited
from physedit.eval_hooks.picabench.generate import edit_benchmark, made_with
from physedit.eval_hooks.picabench.input_copy import copy_inputs
from physedit.eval_hooks.picabench.inputs import INPUT_RULE, sizes_in_words
from physedit.eval_hooks.picabench.judging import JudgeSettings, count_unscored, judge_folder
from physedit.eval_hooks.picabench.measure import MeasuringRules, has_records, measure_folder
from physedit.eval_hooks.picabench.measures import Measures, PicaBenchMeasures
from physedit.eval_hooks.picabench.subset import part_in_words, select
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import ReportKeys, load_report, report_keys

log = logging.getLogger(__name__)

_AreaFrame = Literal["input", "long_side_1024"]

# Raise it when the same settings would lead to other pictures, answers or numbers.
_PROTOCOL = 3


@dataclass(frozen=True, slots=True)
class _Side:
    """The base, the unchanged inputs or the adapter under evaluation."""

    folder: Path
    key: str
    described: Mapping[str, object]


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
    ) -> None:
        """Keeps the settings; ``check`` looks at the files.

        Args:
            name: folder of the hook and first part of its metric keys.
            benchmark: parquet file, ``meta_info.json``, or folder with either; or ``OWNER/NAME`` on the hub.
            judge: answers the questions.
            cadence: when the hook is due.
            revision: of a benchmark on the hub: a commit hash, or a tag or branch that may move.
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

        Raises:
            ValueError: a setting out of range, with its name.
        """
        counts = {
            "num_steps": num_steps, "batch_size": batch_size, "judge_workers": judge_workers, "limit": limit,
            "per_law": per_law,
        }  # fmt: skip
        _refuse_out_of_range(counts, max_unanswered_share, time_budget_s)
        if level not in tuple(PromptLevel):
            raise ValueError(f"{name}.level is {level!r}; expected one of {', '.join(PromptLevel)}.")
        if area_frame not in get_args(_AreaFrame):
            raise ValueError(f"{name}.area_frame is {area_frame!r}; expected input or long_side_1024.")
        if limit is not None and per_law is not None:
            raise ValueError(f"{name}.limit={limit} and {name}.per_law={per_law} both choose items: set one to null.")
        self._name, self._cadence = name, cadence
        self._benchmark, self._revision, self._limit, self._per_law = benchmark, revision, limit, per_law
        self._judge, self._measures = judge, measures or PicaBenchMeasures()
        self._has_reference = reference
        plain = MeasuringRules.PLAIN if area_frame == "input" else MeasuringRules.STRICT
        self._rules = MeasuringRules.OFFICIAL if judge.protocol.name == "official" else plain
        self._edit_settings = EditSettings(
            seed, num_steps, guidance, PromptLevel(level), batch_size, time_budget_s, keep_encoded
        )
        self._judge_settings = JudgeSettings(judge_workers, max_unanswered_share)
        self._evaluated: set[Path] = set()

    @property
    def name(self) -> str:
        """Names the hook's folder and the first part of its metric keys."""
        return self._name

    @property
    def cadence(self) -> Cadence:
        """When the trainer calls ``run``."""
        return self._cadence

    def check(self) -> None:
        """Verifies the benchmark's files without decoding a picture or asking the judge; downloads them if need be.

        Raises:
            DatasetLayoutError: the benchmark is not there, not in PICABench's schema, or asks what the measures do not
                know.
            DatasetRowError: a row has no instruction of the level, or questions that cannot be understood.
        """
        num_items = check_benchmark(self._place, self._edit_settings.level, self._measures.kind_of)
        log.info("%s: %d items in %s, judge %s", self._name, num_items, self._benchmark, self._judge.judge_id)

    def finished_reports(self, run_folder: Path, last_step: int) -> tuple[EvalReport, ...]:
        """Returns the reports of steps up to ``last_step`` that an earlier start of this run has written.

        Reports about another benchmark, or made with other edit settings, judge or measures, are left out.
        """
        keys_of = {folder: report_keys(folder) for folder in sorted((run_folder / "eval" / self._name).glob("*"))}
        kept = [folder for folder, keys in keys_of.items() if keys and keys.settings_key == self._settings_key]
        if others := sum(keys is not None for keys in keys_of.values()) - len(kept):
            log.info("%s: %d earlier reports were made with other settings and are left out", self._name, others)
        reports = [load_report(folder) for folder in kept]
        return tuple(report for report in reports if report.step <= last_step)

    def run(self, context: EvalContext) -> EvalReport:
        """Returns the change of the adapter at ``context.step`` against the base; step 0 is the base itself.

        Called on every rank; all get the same report. A finished evaluation of the same weights is only read, unless
        its pictures or answers are no longer what they were: then those that differ are made anew.

        Raises:
            TooManyUnanswered: the judge left too many questions without yes or no.
            OutputsMismatch: pictures were renamed, removed or added after editing.
            FailedElsewhere: another rank failed.
        """
        started = time.monotonic()
        base = self._side(context, "base")
        self._evaluate_base(context, base)
        reference = self._evaluate_input_copy(context, base)
        tuned = base if context.step == 0 else self._side(context, f"step_{context.step:08d}")
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        keys = self._report_keys(base, tuned)
        if context.step > 0 and not context.adapter_id:
            ranks.first_alone(tuned.folder.parent, lambda: shutil.rmtree(tuned.folder, ignore_errors=True))
        is_finished: list[bool] = []
        ranks.together(tuned.folder, lambda: is_finished.append(self._is_finished(tuned.folder, keys)))
        if is_finished[0]:
            return load_report(tuned.folder)
        if context.step > 0:
            edit_benchmark(context, self._task(tuned, twin=base.folder))
            self._score(context, tuned, earlier=(base.folder,))
        comparison = Comparison(
            hook=self._name,
            step=context.step,
            base=base.folder,
            tuned=tuned.folder,
            judge=self._judge,
            measures=self._measures,
            part=part_in_words(self._limit, self._per_law),
            num_items=len(self._items),
            input_copy=reference,
        )
        ranks.first_alone(tuned.folder, lambda: write_report(comparison, keys, time.monotonic() - started))
        return load_report(tuned.folder)

    @cached_property
    def _place(self) -> Path:
        return find_benchmark(self._benchmark, self._revision)

    @cached_property
    def _items(self) -> tuple[BenchmarkItem, ...]:
        return select(load_benchmark(self._place), limit=self._limit, per_law=self._per_law)

    @cached_property
    def _which_items(self) -> Mapping[str, object]:
        """What decides the inputs and what is asked about them."""
        return {
            "protocol": _PROTOCOL,
            "benchmark": benchmark_digest(self._place),
            "limit": self._limit,
            "per_law": self._per_law,
            "level": self._edit_settings.level.value,
            "inputs": INPUT_RULE,
        }

    @cached_property
    def _settings(self) -> Mapping[str, object]:
        """What decides the pictures and is known without a model."""
        settings = self._edit_settings
        return {
            **self._which_items,
            "hook": self._name,
            "seed": settings.seed,
            "num_steps": settings.num_steps,
            "guidance": settings.guidance,
            "batch_size": settings.batch_size,
        }

    @cached_property
    def _settings_key(self) -> str:
        return digest_of({**self._settings, **self._asked})

    @property
    def _asked(self) -> Mapping[str, object]:
        """What decides the numbers that the same pictures get."""
        return {
            "judge": self._judge.judge_id,
            "measures": self._measures.measures_id,
            "rules": self._rules.value,
            "reference": self._has_reference,
        }

    def _side(self, context: EvalContext, folder_name: str) -> _Side:
        settings = self._edit_settings.for_editor(context.backbone)
        described: dict[str, object] = {
            **self._settings,
            "num_steps": settings.num_steps,
            "guidance": settings.guidance,
            **made_with(context),
        }
        if folder_name != "base":
            described |= {"step": context.step, "adapter": context.adapter_id}
        return self._described(context, folder_name, described)

    def _described(self, context: EvalContext, folder_name: str, described: Mapping[str, object]) -> _Side:
        """Returns a side; where the benchmark was found is told beside what decides the pictures."""
        beside = {
            "source": place_in_words(self._benchmark, self._revision, self._place),
            "num_items": len(self._items),
            "sizes": sizes_in_words(self._items, context.backbone.sizes_of),
        }
        return _Side(
            folder=context.run_folder / "eval" / self._name / folder_name,
            key=digest_of(described),
            described={**described, **beside},
        )

    def _report_keys(self, base: _Side, tuned: _Side) -> ReportKeys:
        decided_by = {"base": base.key, "tuned": tuned.key, **self._asked}
        return ReportKeys(key=digest_of(decided_by), settings_key=self._settings_key)

    def _evaluate_base(self, context: EvalContext, base: _Side) -> None:
        def edit() -> None:
            with context.without_adapter():
                edit_benchmark(context, self._task(base, twin=None))

        self._evaluate_shared(context, base, edit)

    def _evaluate_input_copy(self, context: EvalContext, base: _Side) -> Path | None:
        """Returns the folder of the unchanged inputs as an editor's outputs, None if they are not asked for."""
        if not self._has_reference:
            return None
        decided_by = {**self._which_items, "edits": "none: the input itself"}
        side = self._described(context, "input_copy", decided_by)
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        copy = partial(copy_inputs, self._task(side, twin=base.folder))
        self._evaluate_shared(context, side, lambda: ranks.first_alone(side.folder, copy))
        return side.folder

    def _evaluate_shared(self, context: EvalContext, side: _Side, edit: Callable[[], None]) -> None:
        """Edits, judges and measures what many runs share, as far as none of them has done so."""
        if side.folder in self._evaluated:
            return
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        shelf = BaseShelf(context.base_cache / self._name, side.key, self._judge.judge_id)
        ranks.first_alone(side.folder, lambda: shelf.fetch_into(side.folder))
        edit()
        self._score(context, side, earlier=())
        if count_unscored(side.folder) or not_edited(side.folder):
            return  # the judge left, or the time was up: the next evaluation does the rest
        ranks.first_alone(side.folder, lambda: shelf.publish(side.folder))
        self._evaluated.add(side.folder)

    def _task(self, side: _Side, *, twin: Path | None) -> EditTask:
        return EditTask(
            folder=side.folder,
            items=self._items,
            settings=self._edit_settings,
            hook=self._name,
            key=side.key,
            described=side.described,
            twin=twin,
        )

    def _score(self, context: EvalContext, side: _Side, *, earlier: Sequence[Path]) -> None:
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        judge_folder(
            side.folder,
            self._judge,
            kind_of=self._measures.kind_of,
            settings=self._judge_settings,
            earlier=earlier,
            ranks=ranks,
            progress=lambda done, total, label: context.progress(done, total, f"{self._name}: {label}"),
        )
        measure_folder(side.folder, ranks, rules=self._rules)

    def _is_finished(self, folder: Path, keys: ReportKeys) -> bool:
        is_whole = report_keys(folder) == keys and has_its_pictures(folder) and has_records(folder)
        may_lack = self._edit_settings.time_budget_s is not None
        return is_whole and not count_unscored(folder) and (may_lack or not not_edited(folder))


def _refuse_out_of_range(
    counts: Mapping[str, int | None], max_unanswered_share: float, time_budget_s: float | None
) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1.")
    if not 0 <= max_unanswered_share < 1:
        raise ValueError(f"max_unanswered_share is {max_unanswered_share}; expected 0 up to but not including 1.")
    if time_budget_s is not None and not time_budget_s > 0:
        raise ValueError(f"time_budget_s is {time_budget_s}; expected more than 0, or null for no end.")
