"""From the judged and measured pictures of the base and a checkpoint to the report about them."""

from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.compare import PairedRecords, pair_records
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.judges.judge import Judge, Verdict, VerdictKind
from physedit.eval_hooks.metrics.metric import ItemRecord
from physedit.eval_hooks.picabench.folder import read_manifest
from physedit.eval_hooks.picabench.judging import count_verdicts
from physedit.eval_hooks.picabench.measure import count_resized, read_records
from physedit.eval_hooks.picabench.measures import Measures, changes_of, scores_of
from physedit.eval_hooks.report_file import ReportKeys, save_report


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
        is_part: True if only some items of the benchmark were edited.
    """

    hook: str
    step: int
    base: Path
    tuned: Path
    judge: Judge
    measures: Measures
    is_part: bool


def write_report(comparison: Comparison, keys: ReportKeys, seconds: float) -> None:
    """Writes the report of a comparison to the checkpoint's folder.

    Args:
        comparison: what to report on.
        keys: what the report belongs to.
        seconds: wall time of the evaluation.
    """
    own = read_records(comparison.tuned)
    paired = pair_records(read_records(comparison.base), own)
    changes, flips = changes_of(comparison.measures, comparison.hook, paired)
    report = EvalReport(
        hook=comparison.hook,
        step=comparison.step,
        metrics=changes,
        folder=comparison.tuned,
        notes=_notes(comparison, own, paired),
        seconds=seconds,
        flips=flips,
    )
    scores = scores_of(comparison.measures, comparison.hook, own)
    manifest = read_manifest(comparison.tuned)
    assert manifest is not None
    evidence = {
        "judge": {"id": comparison.judge.judge_id, "note": comparison.judge.note},
        "measures": comparison.measures.measures_id,
        "settings": manifest.settings,
        "scores": {key: {"value": s.value, "standard_error": s.standard_error, "n": s.n} for key, s in scores.items()},
        "verdicts": {"base": count_verdicts(comparison.base), "tuned": count_verdicts(comparison.tuned)},
        "left_out_of_pairs": paired.left_out,
    }
    save_report(report, keys=keys, evidence=evidence)


def _notes(comparison: Comparison, records: tuple[ItemRecord, ...], paired: PairedRecords) -> tuple[str, ...]:
    notes = [f"Judge: {comparison.judge.note}", *comparison.measures.notes(records)]
    notes += _notes_on_verdicts(comparison)
    if paired.left_out:
        notes.append(f"{paired.left_out} results exist on one side only and are left out of the comparison.")
    if comparison.is_part:
        notes.append(f"Only {len(records)} items, spread over the benchmark.")
    if resized := count_resized(comparison.tuned):
        notes.append(f"{resized} edited pictures had another size than their input and were scaled for the PSNR.")
    return tuple(notes)


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
