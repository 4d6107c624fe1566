"""PICABench at a checkpoint: edit, judge, measure, and report the change against the base."""

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from physedit.data_loaders.sample import PromptLevel
from physedit.eval_hooks.files import digest_of
from physedit.eval_hooks.hook import Cadence, EvalContext, EvalReport
from physedit.eval_hooks.judges.judge import Judge
from physedit.eval_hooks.picabench.base_shelf import BaseShelf
from physedit.eval_hooks.picabench.benchmark import (
    BenchmarkItem,
    benchmark_digest,
    check_benchmark,
    load_benchmark,
    spread,
)
from physedit.eval_hooks.picabench.comparison import Comparison, write_report
from physedit.eval_hooks.picabench.folder import has_its_pictures
from physedit.eval_hooks.picabench.generate import EditSettings, EditTask, edit_benchmark
from physedit.eval_hooks.picabench.judging import JudgeSettings, count_unscored, judge_folder
from physedit.eval_hooks.picabench.measure import has_records, measure_folder
from physedit.eval_hooks.picabench.measures import Measures, PicaBenchMeasures
from physedit.eval_hooks.ranks import Ranks
from physedit.eval_hooks.report_file import ReportKeys, load_report, report_keys

log = logging.getLogger(__name__)

# Raise it when the same settings would lead to other pictures, answers or numbers.
_PROTOCOL = 2


@dataclass(frozen=True, slots=True)
class _Side:
    """The base or the adapter under evaluation."""

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
        measures: Measures | None = None,
        level: str = PromptLevel.SUPERFICIAL,
        seed: int = 0,
        num_steps: int = 28,
        guidance: float | None = None,
        batch_size: int = 1,
        limit: int | None = None,
        judge_workers: int = 1,
        max_unanswered_share: float = 0.05,
    ) -> None:
        """Keeps the settings; ``check`` looks at the files.

        Args:
            name: folder of the hook and first part of its metric keys.
            benchmark: parquet file, or folder with parquet files.
            judge: answers the questions.
            cadence: when the hook is due.
            measures: which numbers are reported; None for PICABench's own.
            level: which of the three instructions is used.
            seed: decides the noise of every item.
            num_steps: denoising steps of an edit.
            guidance: guidance scale of the pipeline; None for the editor's own.
            batch_size: pictures edited at once; at 1 no kernel can make a picture depend on its neighbours.
            limit: this many items, spread over the benchmark; None for all.
            judge_workers: pictures judged at once.
            max_unanswered_share: share of questions without yes or no above which the evaluation fails.

        Raises:
            ValueError: a setting out of range, with its name.
        """
        _refuse_out_of_range(num_steps, batch_size, judge_workers, limit, max_unanswered_share)
        if level not in tuple(PromptLevel):
            raise ValueError(f"{name}.level is {level!r}; expected one of {', '.join(PromptLevel)}.")
        self._name, self._cadence = name, cadence
        self._benchmark, self._limit = Path(benchmark), limit
        self._judge, self._measures = judge, measures or PicaBenchMeasures()
        self._edit_settings = EditSettings(seed, num_steps, guidance, PromptLevel(level), batch_size)
        self._judge_settings = JudgeSettings(judge_workers, max_unanswered_share)
        self._evaluated_bases: set[Path] = set()

    @property
    def name(self) -> str:
        """Names the hook's folder and the first part of its metric keys."""
        return self._name

    @property
    def cadence(self) -> Cadence:
        """When the trainer calls ``run``."""
        return self._cadence

    def check(self) -> None:
        """Verifies the benchmark's files without decoding a picture or asking the judge.

        Raises:
            DatasetLayoutError: the benchmark is not there, not in PICABench's schema, or asks what the measures do not
                know.
            DatasetRowError: a row has no instruction of the level, or questions that cannot be understood.
        """
        num_items = check_benchmark(self._benchmark, self._edit_settings.level, self._measures.kind_of)
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
        tuned = base if context.step == 0 else self._side(context, f"step_{context.step:08d}")
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        keys = self._report_keys(base, tuned)
        if context.step > 0 and not context.adapter_id:
            ranks.first_alone(tuned.folder.parent, lambda: shutil.rmtree(tuned.folder, ignore_errors=True))
        is_finished: list[bool] = []
        ranks.together(tuned.folder, lambda: is_finished.append(_is_finished(tuned.folder, keys)))
        if is_finished[0]:
            return load_report(tuned.folder)
        if context.step > 0:
            self._evaluate(context, tuned, twin=base.folder)
        comparison = Comparison(
            hook=self._name,
            step=context.step,
            base=base.folder,
            tuned=tuned.folder,
            judge=self._judge,
            measures=self._measures,
            is_part=self._limit is not None,
        )
        ranks.first_alone(tuned.folder, lambda: write_report(comparison, keys, time.monotonic() - started))
        return load_report(tuned.folder)

    @cached_property
    def _items(self) -> tuple[BenchmarkItem, ...]:
        return spread(load_benchmark(self._benchmark), self._limit)

    @cached_property
    def _benchmark_digest(self) -> str:
        return benchmark_digest(self._benchmark)

    @cached_property
    def _settings(self) -> Mapping[str, object]:
        """What decides the pictures and is known without a model."""
        settings = self._edit_settings
        return {
            "protocol": _PROTOCOL,
            "hook": self._name,
            "benchmark": self._benchmark_digest,
            "limit": self._limit,
            "level": settings.level.value,
            "seed": settings.seed,
            "num_steps": settings.num_steps,
            "guidance": settings.guidance,
            "batch_size": settings.batch_size,
        }

    @cached_property
    def _settings_key(self) -> str:
        asked = {"judge": self._judge.judge_id, "measures": self._measures.measures_id}
        return digest_of({**self._settings, **asked})

    def _side(self, context: EvalContext, folder_name: str) -> _Side:
        described: dict[str, object] = {
            **self._settings,
            "backbone": context.backbone.fingerprint,
            "default_guidance": context.backbone.default_guidance if self._edit_settings.guidance is None else None,
            "torch": torch.__version__,
            "device": _device_name(context.device),
        }
        if folder_name != "base":
            described |= {"step": context.step, "adapter": context.adapter_id}
        folder = context.run_folder / "eval" / self._name / folder_name
        return _Side(folder=folder, key=digest_of(described), described=described)

    def _report_keys(self, base: _Side, tuned: _Side) -> ReportKeys:
        decided_by = {
            "base": base.key,
            "tuned": tuned.key,
            "judge": self._judge.judge_id,
            "measures": self._measures.measures_id,
        }
        return ReportKeys(key=digest_of(decided_by), settings_key=self._settings_key)

    def _evaluate_base(self, context: EvalContext, base: _Side) -> None:
        if base.folder in self._evaluated_bases:
            return
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        shelf = BaseShelf(context.base_cache / self._name, base.key, self._judge.judge_id)
        ranks.first_alone(base.folder, lambda: shelf.fetch_into(base.folder))
        with context.without_adapter():
            self._evaluate(context, base, twin=None)
        if count_unscored(base.folder):
            return  # the judge left: the next evaluation asks for the rest
        ranks.first_alone(base.folder, lambda: shelf.publish(base.folder))
        self._evaluated_bases.add(base.folder)

    def _evaluate(self, context: EvalContext, side: _Side, *, twin: Path | None) -> None:
        ranks = Ranks(context.rank, context.world_size, context.barrier)
        task = EditTask(
            folder=side.folder,
            items=self._items,
            settings=self._edit_settings,
            hook=self._name,
            key=side.key,
            described=side.described,
            twin=twin,
        )
        edit_benchmark(context, task)
        judge_folder(
            side.folder,
            self._judge,
            kind_of=self._measures.kind_of,
            settings=self._judge_settings,
            earlier=() if twin is None else (twin,),
            ranks=ranks,
            progress=lambda done, total, label: context.progress(done, total, f"{self._name}: {label}"),
        )
        measure_folder(side.folder, ranks)


def _is_finished(folder: Path, keys: ReportKeys) -> bool:
    is_whole = report_keys(folder) == keys and has_its_pictures(folder) and has_records(folder)
    return is_whole and not count_unscored(folder)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _refuse_out_of_range(
    num_steps: int,
    batch_size: int,
    judge_workers: int,
    limit: int | None,
    max_unanswered_share: float,
) -> None:
    counts = {
        "num_steps": num_steps,
        "batch_size": batch_size,
        "judge_workers": judge_workers,
        "limit": limit,
    }
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1.")
    if not 0 <= max_unanswered_share < 1:
        raise ValueError(f"max_unanswered_share is {max_unanswered_share}; expected 0 up to but not including 1.")
