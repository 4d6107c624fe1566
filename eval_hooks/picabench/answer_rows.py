"""A line about an answer, as ``items.jsonl`` and the journals of a killed run hold it."""

from collections.abc import Mapping
from pathlib import Path

from physedit.eval_hooks.files import DamagedFileError, json_line
from physedit.eval_hooks.judges.judge import Verdict, VerdictKind
from physedit.eval_hooks.picabench.annotations import Question, box_record

ANSWER_KEYS = ("question", "box", "verdict", "raw", "explanation", "judge_id", "output_sha256")
"""What every line tells about an answer."""


def answer_row(picture: str, question: Question, judge_id: str, verdict: Verdict) -> dict[str, object]:
    """Returns the line of an answer about the picture of this hash."""
    return {
        "question": question.text,
        "box": _box(question),
        "verdict": verdict.kind.value,
        "answer": verdict.answer,
        "raw": verdict.raw,
        "explanation": verdict.explanation,
        "judge_id": judge_id,
        "output_sha256": picture,
    }


def verdict_of_row(row: Mapping[str, object], path: Path) -> Verdict:
    """Returns the verdict of a line.

    Raises:
        DamagedFileError: it holds none.
    """
    if row["verdict"] not in tuple(VerdictKind):
        raise DamagedFileError(
            f"{path} is damaged: {row['verdict']!r} is no verdict; expected one of {', '.join(VerdictKind)}. Delete "
            "the file to redo it."
        )
    return Verdict(
        kind=VerdictKind(str(row["verdict"])),
        raw=str(row["raw"]),
        explanation=str(row["explanation"]),
        answer=str(row.get("answer", "")),
    )


def identity(picture: str, question: Question, judge_id: str) -> str:
    """Returns what an answer is known by."""
    return json_line([picture, question.text, _box(question), judge_id])


def identity_of_row(row: Mapping[str, object]) -> str:
    """Returns the ``identity`` of a line's answer."""
    return json_line([row["output_sha256"], row["question"], row["box"], row["judge_id"]])


def _box(question: Question) -> dict[str, float] | None:
    return None if question.box is None else box_record(question.box)
