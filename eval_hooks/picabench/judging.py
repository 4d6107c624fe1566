"""Having a judge answer the questions about the pictures of a folder, shared by the ranks.

An answer belongs to a picture (by its hash), a question, its box and a judge. One that is known is not asked for again:
neither after a kill, nor where a checkpoint's picture equals the base's.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.images import read_rgb
from physedit.eval_hooks.files import (
    DamagedFileError,
    file_digest,
    json_line,
    open_journal,
    read_json_lines,
    write_json_lines,
)
from physedit.eval_hooks.judges.judge import Judge, JudgeQuestion, Verdict, VerdictKind
from physedit.eval_hooks.picabench.annotations import Question, box_record
from physedit.eval_hooks.picabench.folder import (
    EditedItem,
    read_manifest,
    read_meta_info,
    verify_outputs,
)
from physedit.eval_hooks.ranks import Ranks

log = logging.getLogger(__name__)

ITEMS_FILE = "items.jsonl"
ANSWER_KEYS = ("question", "box", "verdict", "raw", "explanation", "judge_id", "output_sha256")
"""What every line tells about an answer, in ``items.jsonl`` and in the journals of a killed run."""
_ANSWERED = (VerdictKind.YES.value, VerdictKind.NO.value)


class TooManyUnanswered(ValueError):
    """So many questions were left without a yes or no that the accuracy would mean little."""


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How a folder is judged.

    Attributes:
        workers: pictures judged at once; above 1 the judge must bear threads.
        max_unanswered_share: above this share of questions without yes or no the evaluation fails.
    """

    workers: int = 1
    max_unanswered_share: float = 0.05


def no_kind(_question: str) -> str | None:
    """Tells no kinds of question apart."""
    return None


def judge_folder(
    folder: Path,
    judge: Judge,
    *,
    kind_of: Callable[[str], str | None] = no_kind,
    settings: JudgeSettings | None = None,
    earlier: Sequence[Path] = (),
    ranks: Ranks | None = None,
    progress: Callable[[int, int, str], None] = lambda _done, _total, _label: None,
) -> None:
    """Writes ``items.jsonl``, a line for every question of the folder; every rank must call it.

    Args:
        folder: edits with their ``meta_info.json``.
        judge: who answers.
        kind_of: tells what a question is about, for metrics over one kind.
        settings: how; None for the defaults.
        earlier: folders whose answers about identical pictures hold here too.
        ranks: who shares the work; None for this process alone.
        progress: called with (done, total, label) after every picture of this rank.

    Raises:
        OutputsMismatch: pictures are missing or unknown to the manifest.
        TooManyUnanswered: more than the allowed share has no yes or no; the lines are on disk.
        DamagedFileError: answers on file cannot be read.
        JudgeUnavailable: the judge cannot be reached, now or any more. Answers given until then are kept, and the next
            call asks only for the rest.
        FailedElsewhere: another rank failed, perhaps for that reason.
    """
    ranks, settings = ranks or Ranks(), settings or JudgeSettings()
    sources = [folder, *earlier]

    def ask() -> None:
        share = ranks.share(_portraits(folder))
        task = _Asking(folder, judge, _known(sources))
        with open_journal(folder / f"items.{ranks.rank}.jsonl") as journal:
            for done, rows in enumerate(_ask_all(task, share, settings.workers), start=1):
                journal.writelines(json_line(row) for row in rows)
                journal.flush()
                progress(done, len(share), "judging")

    ranks.together(folder, ask)
    ranks.first_alone(folder, lambda: _merge(folder, judge, _known(sources), kind_of))
    _refuse_unanswered(folder, settings.max_unanswered_share)


def count_verdicts(folder: Path) -> dict[str, int]:
    """Returns how many questions of a judged folder got which verdict, all five of them named."""
    found = Counter(str(row["verdict"]) for row in read_json_lines(folder / ITEMS_FILE, ["verdict"]))
    return {kind.value: found[kind.value] for kind in VerdictKind}


@dataclass(frozen=True, slots=True)
class _Portrait:
    """An item with the identity of its picture: the hash, marked if it is not the manifest's."""

    item: EditedItem
    picture: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class _Asking:
    folder: Path
    judge: Judge
    known: Mapping[str, Verdict]


def _portraits(folder: Path) -> list[_Portrait]:
    manifest = read_manifest(folder)
    if manifest is None:
        log.warning("%s has no manifest: nothing proves which settings made its pictures", folder)
    altered = verify_outputs(folder, manifest) if manifest else frozenset()
    return [_portrait(folder, item, altered) for item in read_meta_info(folder)]


def _portrait(folder: Path, item: EditedItem, altered: frozenset[str]) -> _Portrait:
    path = folder / item.output_path
    if not path.exists():
        return _Portrait(item, f"missing:{item.index}", f"there is no {path}")
    digest = file_digest(path)
    if item.output_path in altered:
        return _Portrait(item, f"altered:{digest}", f"{path} is not the picture that was edited: its hash differs")
    return _Portrait(item, digest, None)


def _ask_all(task: _Asking, portraits: Sequence[_Portrait], workers: int) -> Iterable[list[dict[str, object]]]:
    with ThreadPoolExecutor(max_workers=workers) as pool:
        waiting = [pool.submit(_ask_about, task, portrait) for portrait in portraits]
        try:
            for finished in as_completed(waiting):
                yield finished.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ask_about(task: _Asking, portrait: _Portrait) -> list[dict[str, object]]:
    """Returns the lines of the questions that had no yes or no yet."""
    open_questions = [
        question
        for question in portrait.item.questions
        if not _is_answered(task.known.get(_identity(portrait.picture, question, task.judge.judge_id)))
    ]
    if not open_questions:
        return []
    fault, image = portrait.fault, None
    if fault is None:
        try:
            image = read_rgb(task.folder / portrait.item.output_path)
        except ValueError as error:
            fault = str(error)
    rows = []
    for question in open_questions:
        if image is None:
            verdict = Verdict(kind=VerdictKind.ERROR, raw="", explanation=f"not sent to the judge: {fault}")
        else:
            verdict = task.judge.answer(image, JudgeQuestion(text=question.text, box=question.box))
        rows.append(_row(portrait.picture, question, task.judge.judge_id, verdict))
    return rows


def _merge(folder: Path, judge: Judge, known: Mapping[str, Verdict], kind_of: Callable[[str], str | None]) -> None:
    rows = []
    for portrait in _portraits(folder):
        for number, question in enumerate(portrait.item.questions):
            verdict = known.get(_identity(portrait.picture, question, judge.judge_id))
            if verdict is None:
                raise FileNotFoundError(
                    f"{folder}: no answer about item {portrait.item.index} although every rank has finished. "
                    "All ranks must see the same folder: put the run on a file system that they share."
                )
            rows.append(
                {
                    "index": portrait.item.index,
                    "number": number,
                    "category": portrait.item.category,
                    "law": portrait.item.law,
                    "operation": portrait.item.operation,
                    "level": portrait.item.level,
                    "reference": question.answer,
                    "kind": kind_of(question.text),
                    "correct": _is_correct(verdict, question),
                    **_row(portrait.picture, question, judge.judge_id, verdict),
                }
            )
    write_json_lines(folder / ITEMS_FILE, rows)
    for journal in folder.glob("items.*.jsonl"):
        journal.unlink()


def _known(folders: Sequence[Path]) -> dict[str, Verdict]:
    """Returns every verdict on file; a yes or no stands before any other, else the last line counts."""
    verdicts: dict[str, Verdict] = {}
    for folder in folders:
        for path in sorted(folder.glob("items*.jsonl")):
            for row in read_json_lines(path, required=ANSWER_KEYS):
                identity = _row_identity(row)
                if not _is_answered(verdicts.get(identity)):
                    verdicts[identity] = _verdict(row, path)
    return verdicts


def _verdict(row: Mapping[str, object], path: Path) -> Verdict:
    if row["verdict"] not in tuple(VerdictKind):
        raise DamagedFileError(
            f"{path} is damaged: {row['verdict']!r} is no verdict; expected one of {', '.join(VerdictKind)}. Delete "
            "the file to redo it."
        )
    return Verdict(kind=VerdictKind(str(row["verdict"])), raw=str(row["raw"]), explanation=str(row["explanation"]))


def _row(picture: str, question: Question, judge_id: str, verdict: Verdict) -> dict[str, object]:
    return {
        "question": question.text,
        "box": box_record(question.box),
        "verdict": verdict.kind.value,
        "raw": verdict.raw,
        "explanation": verdict.explanation,
        "judge_id": judge_id,
        "output_sha256": picture,
    }


def _identity(picture: str, question: Question, judge_id: str) -> str:
    return json_line([picture, question.text, box_record(question.box), judge_id])


def _row_identity(row: Mapping[str, object]) -> str:
    return json_line([row["output_sha256"], row["question"], row["box"], row["judge_id"]])


def _is_answered(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.kind.value in _ANSWERED


def _is_correct(verdict: Verdict, question: Question) -> bool | None:
    return verdict.kind.value == question.answer.lower() if _is_answered(verdict) else None


def _refuse_unanswered(folder: Path, max_share: float) -> None:
    rows = read_json_lines(folder / ITEMS_FILE)
    open_rows = [row for row in rows if row["verdict"] not in _ANSWERED]
    if len(open_rows) <= max_share * len(rows):
        return
    counts = ", ".join(f"{n} {kind}" for kind, n in count_verdicts(folder).items() if kind not in _ANSWERED)
    first = open_rows[0]
    raise TooManyUnanswered(
        f"{len(open_rows)} of {len(rows)} questions have no yes or no ({counts}), more than the allowed share "
        f"{max_share:g}. First: item {first['index']}, {first['question']!r}: "
        f"{first['explanation'] or first['raw']!r}. All lines are in {folder / ITEMS_FILE}. Repair the judge and run "
        "again: only these questions are asked anew; or raise max_unanswered_share."
    )
