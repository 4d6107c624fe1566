"""Having a judge answer the questions about the pictures of a folder, shared by the ranks.

An answer belongs to a picture (by its hash), a question, its box and a judge. One that is known is not asked for again:
neither after a kill, nor where a checkpoint's picture equals the base's. A judge that leaves ends nothing: what it did
not answer is unscored, and asked by the next call.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.files import json_line, open_journal, read_json, read_json_lines, write_json, write_json_lines
from physedit.eval_hooks.judges.judge import Judge, JudgeRefusesAll, Verdict, VerdictKind, is_final
from physedit.eval_hooks.picabench.annotations import Question, Reading
from physedit.eval_hooks.picabench.answer_rows import (
    ANSWER_KEYS,
    answer_row,
    identity,
    identity_of_row,
    verdict_of_row,
)
from physedit.eval_hooks.picabench.asking import Asking, Portrait, portrait, with_time_left
from physedit.eval_hooks.picabench.folder import read_meta_info
from physedit.eval_hooks.picabench.manifest import read_manifest, verify_outputs
from physedit.eval_hooks.ranks import Ranks

log = logging.getLogger(__name__)

ITEMS_FILE = "items.jsonl"
USAGE_FILE = "judging.json"
"""What asking took: requests, tokens, money and the model that answered, by rank; not there if it took nothing."""


class TooManyUnanswered(ValueError):
    """So many questions were left without a yes or no that the accuracy would mean little."""


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How a folder is judged.

    Attributes:
        workers: questions asked at once, at least; a judge that knows better asks more.
        max_unanswered_share: above this share of answers that a protocol leaves out the evaluation fails.
        time_budget_s: seconds after which no further question is asked; None for no end.
    """

    workers: int = 1
    max_unanswered_share: float = 0.05
    time_budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class JudgingOutcome:
    """How far a folder is judged.

    Attributes:
        num_questions: how many it has.
        num_scored: how many have a verdict of their own, whatever it is.
        stopped: why the judge left before the end; None if it did not.
    """

    num_questions: int
    num_scored: int
    stopped: str | None


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
    out: Path | None = None,
) -> JudgingOutcome:
    """Writes ``items.jsonl``, a line for every question of the folder, and returns how many are scored.

    Every rank must call it. If the judge leaves, the rest is ``unscored``: answers given until then are kept, and the
    next call asks only for the rest.

    Args:
        folder: edits with their ``meta_info.json``.
        judge: who answers.
        kind_of: tells what a question is about, for metrics over one kind.
        settings: how; None for the defaults.
        earlier: folders whose answers about identical pictures hold here too.
        ranks: who shares the work; None for this process alone.
        progress: called with (done, total, label) after every question of this rank, and each second without one.
        out: where the answers lie and are written; None for ``folder`` itself.

    Raises:
        OutputsMismatch: pictures are missing or unknown to the manifest.
        TooManyUnanswered: more than the allowed share has no yes or no; the lines are on disk.
        JudgeRefusesAll: the judge is not usable as it is set up; the lines are on disk.
        DamagedFileError: answers on file cannot be read.
        FailedElsewhere: another rank failed, perhaps for that reason.
    """
    ranks, settings, out = ranks or Ranks(), settings or JudgeSettings(), out or folder
    sources = [out, *earlier]
    asking: list[Asking] = []
    portraits: list[Portrait] = []

    def ask() -> None:
        asking.append(Asking(judge, known_answers(sources, judge), settings.time_budget_s))
        portraits.extend(portraits_of(folder, judge))
        questions = asking[0].open_questions(ranks.share(portraits))
        report = with_time_left(progress, len(questions), "judging")
        done = 0

        def still_waiting() -> None:
            progress(done, len(questions), "judging")

        workers = max(settings.workers, judge.num_askers)
        with (
            open_journal(out / f"items.{ranks.rank}.jsonl") as journal,
            asking[0].rows(questions, workers, still_waiting) as rows,
        ):
            for row in rows:
                journal.write(json_line(row))
                journal.flush()
                if row["verdict"] != VerdictKind.UNSCORED.value:
                    done += 1
                    report(done)
        if judge.usage and questions:
            write_json(out / f"judging.{ranks.rank}.json", {"judge_id": judge.judge_id, **judge.usage})

    ranks.together(out, ask)
    ranks.first_alone(out, lambda: _merge(_rows(portraits, judge, known_answers(sources, judge), kind_of), out))
    ranks.together(out, lambda: _raise_if_refused(asking[0], out))
    _refuse_unanswered(out, settings.max_unanswered_share)
    return _outcome(out)


def count_verdicts(folder: Path) -> dict[str, int]:
    """Returns how many questions of a judged folder got which verdict; ``unscored`` is there only if some are."""
    found = Counter(str(row["verdict"]) for row in read_json_lines(folder / ITEMS_FILE, ["verdict"]))
    is_named = [kind for kind in VerdictKind if kind is not VerdictKind.UNSCORED or found[kind.value]]
    return {kind.value: found[kind.value] for kind in is_named}


def count_unscored(folder: Path) -> int:
    """Returns how many questions of a judged folder the judge has not been asked about, or in vain."""
    return count_verdicts(folder).get(VerdictKind.UNSCORED.value, 0)


def portraits_of(folder: Path, judge: Judge) -> list[Portrait]:
    """Returns the items of a folder as the judge's protocol reads them, each with the identity of its picture.

    Raises:
        OutputsMismatch: pictures are missing or unknown to the manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        log.debug("%s has no manifest: nothing proves which settings made its pictures", folder)
    altered = verify_outputs(folder, manifest) if manifest else frozenset()
    items = read_meta_info(folder, Reading(judge.protocol.name))
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter free
        return list(pool.map(lambda item: portrait(folder, item, altered), items))


def _rows(
    portraits: Sequence[Portrait], judge: Judge, known: Mapping[str, Verdict], kind_of: Callable[[str], str | None]
) -> list[dict[str, object]]:
    """Returns the lines of ``items.jsonl`` from what is known."""
    rows: list[dict[str, object]] = []
    for each in portraits:
        for number, question in enumerate(each.item.questions):
            verdict = known.get(identity(each.picture, question, judge.judge_id))
            if verdict is None:
                raise FileNotFoundError(
                    f"{each.path}: no answer about item {each.item.index} although every rank has finished. "
                    "All ranks must see the same folder: put the run on a file system that they share."
                )
            rows.append(
                {
                    "index": each.item.index,
                    "number": number,
                    "category": each.item.category,
                    "law": each.item.law,
                    "operation": each.item.operation,
                    "level": each.item.level,
                    "reference": question.answer,
                    "kind": kind_of(question.text),
                    "correct": _is_correct(verdict, question, judge),
                    **answer_row(each.picture, question, judge.judge_id, verdict),
                }
            )
    return rows


def _merge(rows: Sequence[Mapping[str, object]], out: Path) -> None:
    write_json_lines(out / ITEMS_FILE, rows)
    if usages := sorted(out.glob("judging.*.json")):
        write_json(out / USAGE_FILE, {"ranks": [read_json(usage) for usage in usages]})
    for part in [*out.glob("items.*.jsonl"), *usages]:
        part.unlink()


def _is_correct(verdict: Verdict, question: Question, judge: Judge) -> bool | None:
    if verdict.kind is VerdictKind.UNSCORED:
        return None
    return question.fault is None and judge.protocol.is_correct(verdict, question.answer)


def known_answers(folders: Sequence[Path], judge: Judge) -> dict[str, Verdict]:
    """Returns every verdict on file. A final one stands before any other; else the last one that was scored counts."""
    verdicts: dict[str, Verdict] = {}
    for folder in folders:
        for path in [*folder.glob(ITEMS_FILE), *sorted(folder.glob("items.*.jsonl"))]:
            for row in read_json_lines(path, required=ANSWER_KEYS):
                key, verdict = identity_of_row(row), verdict_of_row(row, path)
                before = verdicts.get(key)
                if before is None or not (is_final(before, judge.protocol) or verdict.kind is VerdictKind.UNSCORED):
                    verdicts[key] = verdict
    return verdicts


def _outcome(folder: Path) -> JudgingOutcome:
    rows = read_json_lines(folder / ITEMS_FILE)
    unscored = [row for row in rows if row["verdict"] == VerdictKind.UNSCORED.value]
    stopped = str(unscored[0]["explanation"]) if unscored else None
    return JudgingOutcome(num_questions=len(rows), num_scored=len(rows) - len(unscored), stopped=stopped)


def _raise_if_refused(asking: Asking, out: Path) -> None:
    """Raises if everything was refused, not if all that was left to ask is what is always refused."""
    refusal = asking.stopped
    if not isinstance(refusal, JudgeRefusesAll):
        return
    verdicts = Counter(count_verdicts(out))
    others_are_answered = verdicts.total() - verdicts[VerdictKind.ERROR.value] > 0 and not count_unscored(out)
    if refusal.verdict is None or not others_are_answered:
        raise refusal


def _refuse_unanswered(folder: Path, max_share: float) -> None:
    rows = read_json_lines(folder / ITEMS_FILE)
    unscored = VerdictKind.UNSCORED.value
    open_rows = [row for row in rows if row["correct"] is None and row["verdict"] != unscored]
    if len(open_rows) <= max_share * len(rows):
        return
    kinds = Counter(str(row["verdict"]) for row in open_rows)
    counts = ", ".join(
        f"{kinds[kind.value]} {kind}" for kind in VerdictKind if kind.value not in ("yes", "no", unscored)
    )
    first = open_rows[0]
    raise TooManyUnanswered(
        f"{len(open_rows)} of {len(rows)} questions have no yes or no ({counts}), more than the allowed share "
        f"{max_share:g}. First: item {first['index']}, {first['question']!r}: "
        f"{first['explanation'] or first['raw']!r}. All lines are in {folder / ITEMS_FILE}. Repair the judge and run "
        "again: only these questions are asked anew; or raise max_unanswered_share."
    )
