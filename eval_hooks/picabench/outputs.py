"""A folder of outputs in PICABench's layout, of any editor, judged and measured on its own: there is no base beside it.

Everything is written to one place, which may be the folder itself: answers, measurements, ``report.json`` with its page
``report.html``, and the published scripts' own result files.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from physedit.data_loaders.sample import DatasetLayoutError
from physedit.eval_hooks.files import digest_of, file_digest, read_json
from physedit.eval_hooks.hook import EvalReport, MetricChange
from physedit.eval_hooks.judges.judge import (
    Judge,
    JudgeQuestion,
    JudgeRefusesAll,
    RemoteJudge,
    Verdict,
    VerdictKind,
)
from physedit.eval_hooks.judges.protocols import JudgeProtocol
from physedit.eval_hooks.metrics.metric import ItemRecord
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.asking import Asking
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO
from physedit.eval_hooks.picabench.folder import read_all_items
from physedit.eval_hooks.picabench.judging import (
    USAGE_FILE,
    JudgeSettings,
    count_verdicts,
    judge_folder,
    known_answers,
    portraits_of,
)
from physedit.eval_hooks.picabench.manifest import read_whole_manifest
from physedit.eval_hooks.picabench.measure import MeasuringRules, measure_folder, read_records
from physedit.eval_hooks.picabench.measures import PicaBenchMeasures, scores_of
from physedit.eval_hooks.picabench.official import write_official_files
from physedit.eval_hooks.picabench.official_notes import notes_of
from physedit.eval_hooks.picabench.open_questions import open_questions
from physedit.eval_hooks.picabench.published import Evaluated, place, placement_record
from physedit.eval_hooks.report import write_html_report
from physedit.eval_hooks.report_file import ReportKeys, save_report, value_record

NAME = "picabench"
"""First part of the metric keys."""
_TOKENS_IN, _TOKENS_OUT = 1300, 100
"""Ours, a guess for a question whose price is not known from earlier ones: prompt and crop; thinking not included."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What is judged, by whom, and where the results go.

    Attributes:
        folder: the pictures, with their ``meta_info.json``.
        out: where everything is written; may be ``folder``.
        judge: who answers.
        rules: how pictures and edit areas are read.
        time_budget_s: seconds after which no further question is asked; None for no end.
        editor: the weights that made the pictures, to find the paper's rows of the same base; None for what the
            folder's manifest tells, if it has one.
        level: of the instructions; None for what the items tell.
    """

    folder: Path
    out: Path
    judge: Judge
    rules: MeasuringRules
    time_budget_s: float | None = None
    editor: str | None = None
    level: str | None = None


@dataclass(frozen=True, slots=True)
class JudgingPlan:
    """What judging a folder would take.

    Attributes:
        num_items: items with an output.
        num_questions: about them.
        num_answered: of which the answer is in the place of results.
        num_cached: of which the answer is in the judge's cache.
        cost_usd: an estimate for the rest; None where the judge's prices are not known, or it has none.
        tokens: what the estimate takes a question for, in and out, and whether that was measured.
    """

    num_items: int
    num_questions: int
    num_answered: int
    num_cached: int
    cost_usd: float | None
    tokens: str

    @property
    def num_to_ask(self) -> int:
        """Questions that would be sent to the judge."""
        return self.num_questions - self.num_answered - self.num_cached


def check_outputs(folder: Path, protocol: JudgeProtocol) -> None:
    """Verifies that there is something to judge.

    Raises:
        DatasetLayoutError: no ``meta_info.json``, of another shape, or without an item.
    """
    items = read_all_items(folder, Reading(protocol.name))
    if not items:
        raise DatasetLayoutError(f"{folder / META_INFO} lists no items, so there is nothing to judge.")
    if not any(item.output_path for item in items):
        raise DatasetLayoutError(
            f"No item of {folder / META_INFO} has an output, so there is nothing to judge. Name the edited picture of "
            "each as its output_path."
        )


def plan_judging(outputs: Outputs) -> JudgingPlan:
    """Returns what judging would take; reads pictures, sends nothing, writes nothing."""
    known = known_answers([outputs.out], outputs.judge)
    everyone = portraits_of(outputs.folder, outputs.judge)
    asking = Asking(_FromCache(outputs.judge), known)
    opened = asking.open_questions(everyone)
    with asking.rows(opened, os.cpu_count() or 1) as rows:
        num_left = sum(row["verdict"] == VerdictKind.UNSCORED.value for row in rows)
    num_questions = sum(len(each.item.questions) for each in everyone)
    tokens_in, tokens_out, told = _tokens_of_a_question(outputs.out)
    judge, cost = outputs.judge, None
    if isinstance(judge, RemoteJudge):
        cost = judge.price_usd(num_left * tokens_in, num_left * tokens_out)
    return JudgingPlan(len(everyone), num_questions, num_questions - len(opened), len(opened) - num_left, cost, told)


def score_outputs(outputs: Outputs, progress: Callable[[int, int, str], None]) -> tuple[EvalReport, str | None]:
    """Judges and measures a folder and writes all results; returns the report, and why the judge left if it did.

    What is answered already is not asked again, and what a judge that left did not answer is asked by the next call.

    Args:
        outputs: what, by whom and where to.
        progress: called with (done, total, label) after every answer.

    Raises:
        DatasetLayoutError, DatasetRowError: the folder's annotations cannot be read.
        OutputsMismatch: pictures are missing or unknown to the folder's manifest, if it has one.
        DamagedFileError: answers on file cannot be read.
    """
    started, stopped = time.monotonic(), None
    settings = JudgeSettings(max_unanswered_share=1.0, time_budget_s=outputs.time_budget_s)
    try:
        outcome = judge_folder(outputs.folder, outputs.judge, settings=settings, progress=progress, out=outputs.out)
        stopped = outcome.stopped
    except JudgeRefusesAll as error:
        stopped = str(error)  # what it answered before is on the disk, and counts
    measure_folder(outputs.folder, rules=outputs.rules, out=outputs.out)
    write_official_files(outputs.folder, outputs.out)
    report = _report(outputs, stopped, time.monotonic() - started)
    name = outputs.folder.resolve().name
    write_html_report(outputs.out, [report], title=f"Outputs in {name}", outputs=outputs.folder)
    return report, stopped


def _report(outputs: Outputs, stopped: str | None, seconds: float) -> EvalReport:
    measures, judge = PicaBenchMeasures(), outputs.judge
    records = read_records(outputs.folder, outputs.out)
    scores = scores_of(measures, NAME, records)
    verdicts = count_verdicts(outputs.out)
    num_questions, num_unscored = sum(verdicts.values()), verdicts.get(VerdictKind.UNSCORED.value, 0)
    left = f"The judge left. Questions scored: {num_questions - num_unscored} of {num_questions}. {stopped}"
    report = EvalReport(
        hook=NAME,
        step=0,
        metrics={key: MetricChange(None, value.value, None, None, value.n) for key, value in scores.items()},
        folder=outputs.out,
        notes=(
            f"Judge: {judge.note}",
            *([left] if num_unscored else []),
            *_left_out(judge.protocol, verdicts),
            *measures.notes(records),
            *notes_of(outputs.folder, outputs.out),
        ),
        seconds=seconds,
        num_questions=num_questions,
        num_unscored=num_unscored,
    )
    asked = {"judge": judge.judge_id, "measures": measures.measures_id, "rules": outputs.rules.value}
    keys = ReportKeys(
        key=digest_of({**asked, "meta_info": file_digest(outputs.folder / META_INFO)}), settings_key=digest_of(asked)
    )
    num_items = len(read_all_items(outputs.folder, Reading(judge.protocol.name)))
    evidence: dict[str, object] = {
        "judge": {"id": judge.judge_id, "note": judge.note, "protocol": judge.protocol.protocol_id},
        "measures": measures.measures_id,
        "scores": {key: value_record(value) for key, value in scores.items()},
        "items": {"in_use": num_items, "edited": {"tuned": len(records)}, "compared": 0},
        "verdicts": {"tuned": verdicts},
        "open_questions": {"tuned": [asdict(each) for each in open_questions(outputs.out)]},
        "published": placement_record(place(_evaluated(outputs, records, num_questions))),
    }
    save_report(report, keys=keys, evidence=evidence)
    return report


def _left_out(protocol: JudgeProtocol, verdicts: Mapping[str, int]) -> tuple[str, ...]:
    """Returns a sentence on the questions that a judge answered with no yes or no, if they do not count as wrong."""
    if Reading(protocol.name) is not Reading.STRICT:
        return ()
    kinds = (VerdictKind.UNPARSED, VerdictKind.REFUSED, VerdictKind.ERROR)
    found = {kind.value: count for kind in kinds if (count := verdicts.get(kind.value, 0))}
    told = ", ".join(f"{count} {kind}" for kind, count in found.items())
    sentence = (
        f"{sum(found.values())} of {sum(verdicts.values())} questions have no yes or no and are left out of the "
        f"accuracy: {told}."
    )
    return (sentence,) if found else ()


def _evaluated(outputs: Outputs, records: Sequence[ItemRecord], num_questions: int) -> Evaluated:
    manifest = read_whole_manifest(outputs.folder)
    told = None if manifest is None else manifest.settings.get("editor")
    levels = {record.level for record in records}
    return Evaluated(
        weights=outputs.editor or (None if told is None else str(told)),
        judge_id=outputs.judge.judge_id,
        protocol=outputs.judge.protocol.name,
        level=outputs.level or (levels.pop() if len(levels) == 1 else None),
        num_items=len(records),
        num_questions=num_questions,
    )


def _tokens_of_a_question(out: Path) -> tuple[float, float, str]:
    """Returns the mean of what earlier questions took, or a guess."""
    path = out / USAGE_FILE
    ranks = read_json(path).get("ranks") if path.exists() else None
    used = [rank for rank in ranks if isinstance(rank, Mapping)] if isinstance(ranks, list) else []
    replies, tokens_in, tokens_out = (
        sum(int(rank.get(key, 0)) for rank in used) for key in ("num_replies", "num_input_tokens", "num_output_tokens")
    )
    if replies:
        told = f"{tokens_in / replies:.0f} tokens in and {tokens_out / replies:.0f} out a question, as measured before"
        return tokens_in / replies, tokens_out / replies, told
    told = f"{_TOKENS_IN} tokens in and {_TOKENS_OUT} out a question, a guess without thinking"
    return _TOKENS_IN, _TOKENS_OUT, told


@dataclass(frozen=True, slots=True)
class _FromCache:
    """A judge of whom only the answers that it remembers are asked."""

    judge: Judge

    @property
    def judge_id(self) -> str:
        """The judge's."""
        return self.judge.judge_id

    @property
    def note(self) -> str:
        """The judge's."""
        return self.judge.note

    @property
    def protocol(self) -> JudgeProtocol:
        """The judge's."""
        return self.judge.protocol

    @property
    def num_askers(self) -> int:
        """The judge's."""
        return self.judge.num_askers

    @property
    def usage(self) -> Mapping[str, object]:
        """Nothing is used."""
        return {}

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        """Returns what the judge remembers, or that there is nothing."""
        stored = self.judge.stored(image, question) if isinstance(self.judge, RemoteJudge) else None
        return stored or Verdict(VerdictKind.UNSCORED, "", "not asked yet")


def plan_record(plan: JudgingPlan) -> str:
    """Returns a plan as JSON."""
    return json.dumps({**asdict(plan), "num_to_ask": plan.num_to_ask}, indent=2)
