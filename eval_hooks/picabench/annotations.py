"""Questions and edit areas in every form that PICABench's files give them, read strictly: wrong shapes are named.

What the published scripts make of wrong shapes is in ``official_annotations``.

Source: github.com/Andrew0613/PICABench, PicaEval_gpt.py (questions) and PicaEval_consistency.py (edit areas).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from physedit.data_loaders.sample import Box, DatasetRowError, Origin

UNKNOWN_AREA = "unknown"


class Reading(StrEnum):
    """How annotations are read; the values are the names of the judges' protocols."""

    STRICT = "strict"
    """Wrong shapes are errors that name the item."""
    OFFICIAL = "official"
    """As the published scripts read them, which skip or replace what they cannot use."""


@dataclass(frozen=True, slots=True)
class Question:
    """A yes-or-no question about the edited picture.

    Attributes:
        text: the question.
        answer: ``"Yes"`` or ``"No"``; read officially, any text.
        box: in the frame in which the picture's long side is 1024 pixels; None shows the judge the whole picture.
        fault: why the published script stores an error for it whatever the judge says; None where it does not.
    """

    text: str
    answer: str
    box: Box | None
    fault: str | None = None


def parse_questions(value: object, origin: Origin) -> tuple[Question, ...]:
    """Returns the questions of an item; pairs without question or answer are left out, as the evaluator does.

    Accepts a list of pairs, a dict of such lists, or a dict of columns; ignores unknown keys. A pair whose box is
    null is about the whole picture.

    Raises:
        DatasetRowError: another form, an answer other than yes or no, or a box without its four numbers.
    """
    pairs = [pair for pair in _pairs(value, origin) if pair.get("question") and pair.get("answer")]
    return tuple(
        Question(
            text=str(pair["question"]),
            answer=_reference(pair["answer"], origin),
            box=None if pair.get("box") is None else _box(pair["box"], origin),
        )
        for pair in pairs
    )


def parse_edit_area(value: object, origin: Origin) -> tuple[Box, ...]:
    """Returns the rectangles of an edit area; empty for null, ``[]`` and ``"unknown"``: the edit may be anywhere.

    Raises:
        DatasetRowError: another text, or a rectangle without its four numbers.
    """
    if value is None or value == UNKNOWN_AREA:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DatasetRowError(
            f"{origin}: edit_area is {value!r}; expected a list of rectangles, null or {UNKNOWN_AREA!r}. "
            "Correct the row."
        )
    return tuple(_box(area, origin) for area in value)


def question_record(question: Question) -> dict[str, object]:
    """Returns a question as PICABench writes it."""
    return {"question": question.text, "answer": question.answer, "box": question_box_record(question.box)}


def question_box_record(box: Box | None) -> dict[str, float] | None:
    """Returns a question's rectangle as PICABench writes it; null shows the whole picture there too."""
    return None if box is None else box_record(box)


def box_record(box: Box) -> dict[str, float]:
    """Returns a rectangle as PICABench writes it."""
    return {"x": box.x, "y": box.y, "width": box.width, "height": box.height}


def _pairs(value: object, origin: Origin) -> list[Mapping[str, object]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return _pairs_of_mapping(value, origin)
    if isinstance(value, Sequence) and not isinstance(value, str):
        pairs = [pair for pair in value if pair is not None]
        if all(isinstance(pair, Mapping) for pair in pairs):
            return pairs
    raise DatasetRowError(
        f"{origin}: annotated_qa_pairs is a {type(value).__name__}; expected a list of "
        "{question, answer, box} or a dict of such lists. Correct the row."
    )


def _pairs_of_mapping(value: Mapping[str, object], origin: Origin) -> list[Mapping[str, object]]:
    texts, answers, boxes = value.get("question"), value.get("answer"), value.get("box")
    if isinstance(texts, Sequence) and isinstance(answers, Sequence) and isinstance(boxes, Sequence):
        return [
            {"question": text, "answer": answer, "box": box}
            for text, answer, box in zip(texts, answers, boxes, strict=True)
        ]
    return [pair for group in value.values() for pair in _pairs(group, origin)]


def _reference(value: object, origin: Origin) -> str:
    word = str(value).strip().rstrip(".").lower()
    if word not in ("yes", "no"):
        raise DatasetRowError(f"{origin}: a reference answer is {value!r}; expected Yes or No. Correct the row.")
    return word.capitalize()


def _box(value: object, origin: Origin) -> Box:
    if not isinstance(value, Mapping):
        raise DatasetRowError(f"{origin}: a box is {value!r}; expected x, y, width and height. Correct the row.")
    sides = [value.get(name) for name in ("x", "y", "width", "height")]
    numbers = [side for side in sides if isinstance(side, int | float)]
    if len(numbers) != len(sides):
        raise DatasetRowError(f"{origin}: a box is {dict(value)!r}; expected x, y, width and height. Correct the row.")
    return Box(*(float(number) for number in numbers))
