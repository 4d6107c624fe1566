"""From the judged and measured pictures of the base and a checkpoint to the report about them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from physedit.eval_hooks.compare import PairedRecords, pair_records
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.judges.judge import Judge, Verdict, VerdictKind
from physedit.eval_hooks.metrics.metric import ItemRecord
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.folder import read_all_items
from physedit.eval_hooks.picabench.judging import count_verdicts
from physedit.eval_hooks.picabench.manifest import not_edited, read_manifest
from physedit.eval_hooks.picabench.measure import read_records
from physedit.eval_hooks.picabench.measures import Measures, changes_of, scores_of
from physedit.eval_hooks.picabench.official import write_official_files
from physedit.eval_hooks.picabench.official_notes import notes_of
from physedit.eval_hooks.picabench.open_questions import open_questions
from physedit.eval_hooks.picabench.published import Evaluated, place, placement_record
from physedit.eval_hooks.report_file import ReportKeys, save_report, value_record


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside the base, both edited, judged and measured.

    Attributes:
        hook: name of the hook, the first part of every metric key.
        step: optimizer step of the checkpoint; 0 compares the base with itself.
        base: folder of the base's evaluation.
        tuned: folder of the checkpoint's evaluation; receives the report.
        judge: who answered.
        measures: which numbers are reported.
        part: how the items were chosen; None if all of the benchmark are in use.
        num_items: how many are in use, edited or not.
        input_copy: folder of the unchanged inputs, evaluated as an editor's outputs; None if they were not.
    """

    hook: str
    step: int
    base: Path
    tuned: Path
    judge: Judge
    measures: Measures
    part: str | None
    num_items: int
    input_copy: Path | None = None


def write_report(comparison: Comparison, keys: ReportKeys, seconds: float) -> None:
    """Writes the report of a comparison to the checkpoint's folder.

    Args:
        comparison: what to report on.
        keys: what the report belongs to.
        seconds: wall time of the evaluation.
    """
    own, others = read_records(comparison.tuned), read_records(comparison.base)
    not_both = {record.index for record in own} ^ {record.index for record in others}
    if not_edited(comparison.base) or not_edited(comparison.tuned):
        own, others = (tuple(r for r in side if r.index not in not_both) for side in (own, others))
    paired = pair_records(others, own)
    measures, hook = comparison.measures, comparison.hook
    copied = () if comparison.input_copy is None else read_records(comparison.input_copy)
    changes, flips = changes_of(measures, hook, paired)
    report = EvalReport(
        hook=comparison.hook,
        step=comparison.step,
        metrics=changes,
        folder=comparison.tuned,
        notes=_notes(comparison, own, paired),
        seconds=seconds,
        flips=flips,
        input_copy={} if comparison.input_copy is None else scores_of(measures, hook, copied),
        num_questions=sum(sum(counts.values()) for counts in _verdicts_of_all(comparison)),
        num_unscored=sum(counts.get("unscored", 0) for counts in _verdicts_of_all(comparison)),
    )
    manifest = read_manifest(comparison.tuned)
    assert manifest is not None
    evidence = {
        "judge": {
            "id": comparison.judge.judge_id,
            "note": comparison.judge.note,
            "protocol": comparison.judge.protocol.protocol_id,
        },
        "measures": measures.measures_id,
        "settings": manifest.settings,
        "scores": {key: value_record(value) for key, value in scores_of(measures, hook, own).items()},
        "items": {
            "in_use": comparison.num_items,
            "edited": {"base": _num_edited(comparison.base), "tuned": _num_edited(comparison.tuned)},
            "compared": len(own),
        },
        "verdicts": {"base": count_verdicts(comparison.base), "tuned": count_verdicts(comparison.tuned)},
        "open_questions": {
            "base": [asdict(each) for each in open_questions(comparison.base)],
            "tuned": [asdict(each) for each in open_questions(comparison.tuned)],
        },
        "left_out_of_pairs": paired.left_out,
        "published": placement_record(place(_evaluated(comparison, manifest.settings, len(own)))),
    }
    for folder in dict.fromkeys((comparison.base, comparison.tuned)):
        write_official_files(folder)
    save_report(report, keys=keys, evidence=evidence)


def _evaluated(comparison: Comparison, settings: Mapping[str, object], num_items: int) -> Evaluated:
    weights, level = settings.get("editor"), settings.get("level")
    return Evaluated(
        weights=None if weights is None else str(weights),
        judge_id=comparison.judge.judge_id,
        protocol=comparison.judge.protocol.name,
        level=None if level is None else str(level),
        num_items=num_items,
        num_questions=sum(count_verdicts(comparison.tuned).values()),
    )


def _notes(comparison: Comparison, records: tuple[ItemRecord, ...], paired: PairedRecords) -> tuple[str, ...]:
    notes = [f"Judge: {comparison.judge.note}", *comparison.measures.notes(records)]
    notes += _notes_on_verdicts(comparison)
    if paired.left_out:
        notes.append(f"{paired.left_out} results exist on one side only and are left out of the comparison.")
    if comparison.part is not None:
        notes.append(f"Only {comparison.num_items} items, {comparison.part}.")
    notes += _notes_on_time(comparison, len(records))
    if comparison.input_copy is not None and (open_inputs := count_verdicts(comparison.input_copy).get("unscored", 0)):
        notes.append(f"Of the unchanged inputs {open_inputs} questions are not scored yet.")
    return (*notes, *notes_of(comparison.tuned))


def _notes_on_time(comparison: Comparison, num_compared: int) -> list[str]:
    """Returns how many items the time was too short for, if it was."""
    edited = _num_edited(comparison.base), _num_edited(comparison.tuned)
    if min(edited) == comparison.num_items:
        return []
    return [
        f"The time budget was used up: {edited[0]} of {comparison.num_items} items of the base and {edited[1]} of the "
        f"checkpoint are edited; the {num_compared} edited by both are compared, and the rest is not scored."
    ]


def _verdicts_of_all(comparison: Comparison) -> list[dict[str, int]]:
    folders = {comparison.base, comparison.tuned, comparison.input_copy}
    return [count_verdicts(folder) for folder in folders if folder is not None]


def _num_edited(folder: Path) -> int:
    return len(read_all_items(folder, Reading.STRICT))


def _notes_on_verdicts(comparison: Comparison) -> list[str]:
    """Returns how many questions the judge left open, and what becomes of them."""
    counts = [count_verdicts(folder) for folder in (comparison.base, comparison.tuned)]
    notes = []
    if any("unscored" in kinds for kinds in counts):
        scored = [f"{sum(kinds.values()) - kinds.get('unscored', 0)} of {sum(kinds.values())}" for kinds in counts]
        notes.append(f"The judge left. Questions scored: {scored[0]} of the base, {scored[1]} of the checkpoint.")
    open_questions = [sum(kinds[kind] for kind in ("unparsed", "refused", "error")) for kinds in counts]
    if any(open_questions):
        is_left_out = comparison.judge.protocol.is_correct(Verdict(VerdictKind.UNPARSED, "", ""), "Yes") is None
        what = "neither as right nor as wrong" if is_left_out else "as wrong, as in the published evaluator"
        notes.append(
            f"Questions without yes or no: {open_questions[0]} of the base, {open_questions[1]} of the checkpoint. "
            f"They count {what}."
        )
    return notes
