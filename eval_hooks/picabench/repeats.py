"""Asking a judge about the same pictures again and again, to see how far it agrees with itself."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from physedit.eval_hooks.agreement import ROW_KEYS, RepeatabilityReport, repeatability_of, write_agreement
from physedit.eval_hooks.files import digest_of, json_line, open_journal, read_json_lines, write_json_lines
from physedit.eval_hooks.judges.judge import Judge, Verdict, VerdictKind, asked_anew
from physedit.eval_hooks.picabench.answer_rows import ANSWER_KEYS, answer_row, identity, identity_of_row, verdict_of_row
from physedit.eval_hooks.picabench.asking import Asking, Portrait, with_time_left
from physedit.eval_hooks.picabench.judging import portraits_of

REPEATS = "repeats"
"""Folder of the repeats, below which each judge has a folder of its own with a file for each repeat."""


def measure_repeatability(
    folder: Path,
    judge: Judge,
    times: int,
    *,
    workers: int = 1,
    progress: Callable[[int, int, str], None] = lambda _done, _total, _label: None,
    out: Path | None = None,
) -> RepeatabilityReport:
    """Has the judge answer every question ``times`` times, writes ``agreement.json`` and returns what it says.

    No answer comes from a cache, nor from ``items.jsonl``, which stays as it is. A call that was interrupted goes on
    where it stopped.

    Args:
        folder: edits with their ``meta_info.json``.
        judge: who answers.
        times: repeats, at least 2.
        workers: questions asked at once, at least.
        progress: called with (done, total, label) after every question of a repeat.
        out: where the repeats and ``agreement.json`` are written; None for ``folder`` itself.

    Raises:
        ValueError: fewer than 2 repeats.
        JudgeUnavailable: the judge left; what it answered is kept.
        OutputsMismatch: pictures are missing or unknown to the manifest.
    """
    if times < 2:
        raise ValueError(f"A judge's agreement with itself needs at least 2 repeats, found {times}.")
    judge, out = asked_anew(judge), out or folder
    portraits = portraits_of(folder, judge)
    paths = [_file_of(out, judge, number) for number in range(1, times + 1)]
    for number, path in enumerate(paths, start=1):
        label = f"repeat {number} of {times}"
        if not _is_complete(path, portraits, judge):
            _ask_all(path, portraits, judge, workers, reporter_of=partial(with_time_left, progress, label=label))
    report = repeatability_of([read_json_lines(path, ROW_KEYS) for path in paths])
    write_agreement(out, judges=[judge.judge_id], repeats=report)
    return report


def _ask_all(
    path: Path,
    portraits: list[Portrait],
    judge: Judge,
    workers: int,
    reporter_of: Callable[[int], Callable[[int], None]],
) -> None:
    """Writes a line for every question to ``path``; those that it holds an answer to are not asked again."""
    journal_path = path.with_suffix(".journal")
    known = {**_answers(path), **_answers(journal_path)}
    asking = Asking(judge, known)
    questions = asking.open_questions(portraits)
    report = reporter_of(len(questions))
    with (
        open_journal(journal_path) as journal,
        asking.rows(questions, max(workers, judge.num_askers)) as rows,
    ):
        for done, row in enumerate(rows, start=1):
            journal.write(json_line(row))
            journal.flush()
            report(done)
            known[identity_of_row(row)] = verdict_of_row(row, journal_path)
    write_json_lines(path, _lines(portraits, judge, known))
    journal_path.unlink()
    if asking.stopped is not None:
        raise asking.stopped


def _lines(portraits: list[Portrait], judge: Judge, known: Mapping[str, Verdict]) -> list[dict[str, object]]:
    return [
        {
            "index": each.item.index,
            "number": number,
            "law": each.item.law,
            **answer_row(
                each.picture, question, judge.judge_id, known[identity(each.picture, question, judge.judge_id)]
            ),
        }
        for each in portraits
        for number, question in enumerate(each.item.questions)
    ]


def _is_complete(path: Path, portraits: list[Portrait], judge: Judge) -> bool:
    """True if a file answers every question about the pictures as they are now."""
    answers = _answers(path)
    asked = {identity(each.picture, question, judge.judge_id) for each in portraits for question in each.item.questions}
    return asked <= answers.keys() and all(answers[each].kind is not VerdictKind.UNSCORED for each in asked)


def _answers(path: Path) -> dict[str, Verdict]:
    if not path.exists():
        return {}
    rows = read_json_lines(path, ANSWER_KEYS)
    return {identity_of_row(row): verdict_of_row(row, path) for row in rows}


def _file_of(out: Path, judge: Judge, number: int) -> Path:
    return out / REPEATS / digest_of({"judge": judge.judge_id})[:12] / f"repeat_{number}.jsonl"
