"""Two judges' answers about the same outputs: how far they agree beyond chance."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from physedit.data_loaders.sample import DatasetLayoutError
from physedit.eval_hooks.agreement import ROW_KEYS, AgreementReport, agreement_of
from physedit.eval_hooks.files import DamagedFileError, read_json_lines
from physedit.eval_hooks.judges.judge import Judge, VerdictKind
from physedit.eval_hooks.picabench.judging import ITEMS_FILE, portraits_of

_Row = Mapping[str, object]
_KINDS = {"index": int, "number": int, "question": str, "verdict": str, "output_sha256": str, "judge_id": str}


def read_other(other: Path, folder: Path, out: Path, judge: Judge) -> list[_Row]:
    """Returns another judge's answers, verified to be about the very questions and pictures of a folder.

    Args:
        other: where they lie, as ``items.jsonl``.
        folder: the outputs that ``judge`` answers about.
        out: where the answers of ``judge`` go.
        judge: who answers.

    Raises:
        DatasetLayoutError: there are none, or they are those of ``judge`` or of several judges.
        DamagedFileError: they cannot be read.
        NotTheSameQuestions: they are about other questions or pictures, or about none of these.
    """
    if other.resolve() == out.resolve():
        raise DatasetLayoutError(
            f"{other} is where the answers of {judge.judge_id} go. Write them elsewhere: out=FOLDER, or name another "
            "judge's folder."
        )
    if not (other / ITEMS_FILE).is_file():
        found = f"has no {ITEMS_FILE}" if other.is_dir() else "is not a folder"
        raise DatasetLayoutError(f"{other} {found}. Give the folder in which another judge's answers lie, its out=.")
    rows = read_json_lines(other / ITEMS_FILE, (*ROW_KEYS, "judge_id"))
    for number, row in enumerate(rows, start=1):
        _check_kinds(other / ITEMS_FILE, number, row)
    judges = judges_of(rows)
    if judge.judge_id in judges:
        raise DatasetLayoutError(
            f"{other} holds answers of the same judge, {judge.judge_id}. How far a judge agrees with itself is "
            "measured by --repeat N."
        )
    if len(judges) > 1:
        raise DatasetLayoutError(f"{other} holds answers of several judges: {', '.join(judges)}. Give those of one.")
    agreement_of(_unanswered(folder, judge), rows)
    return list(rows)


def agreement_with(out: Path, rows: Sequence[_Row]) -> AgreementReport:
    """Returns how far the answers in ``out`` and ``rows`` agree.

    Raises:
        DamagedFileError, NotTheSameQuestions: as ``read_other``.
    """
    return agreement_of(read_json_lines(out / ITEMS_FILE, ROW_KEYS), rows)


def judges_of(rows: Sequence[_Row]) -> list[str]:
    """Returns the ids of those who answered."""
    return sorted({str(row["judge_id"]) for row in rows})


def _check_kinds(path: Path, number: int, row: _Row) -> None:
    for key, kind in _KINDS.items():
        if not isinstance(row[key], kind):
            raise DamagedFileError(
                f"{path}, line {number} is damaged: {key} is {row[key]!r}, expected {kind.__name__}. Judge it again."
            )


def _unanswered(folder: Path, judge: Judge) -> list[_Row]:
    """Returns a line for every question of a folder, with no answer yet."""
    return [
        {
            "index": each.item.index,
            "number": number,
            "law": each.item.law,
            "question": question.text,
            "verdict": VerdictKind.UNSCORED.value,
            "output_sha256": each.picture,
        }
        for each in portraits_of(folder, judge)
        for number, question in enumerate(each.item.questions)
    ]
