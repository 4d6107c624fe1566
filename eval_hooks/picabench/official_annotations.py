"""What the published scripts make of an item's questions, edit area and paths, whatever their shape.

Where those scripts stop with an error (a question list that holds no objects, an edit area that is a number), the part
in question is left out instead.

Source: github.com/Andrew0613/PICABench at 0514acd, PicaEval_gpt.py (questions, output paths) and
PicaEval_consistency.py (edit areas).
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.picabench.annotations import UNKNOWN_AREA, Question

# PicaEval_gpt.py takes the first of these that an item has.
OUTPUT_KEYS = ("output_path", "output_image_path", "output_img_path")
_SIDES = ("x", "y", "width", "height")
_BEYOND = 1e9
"""A length that no picture has."""
_COLUMNS = ("question", "answer", "box")
_NAME_BYTES = 255
"""Longest name of a file on Linux's file systems."""
VIZ_MODE = "crop_box_and_resize"
"""What PicaEval_gpt.py shows of a picture by default."""


@dataclass(frozen=True, slots=True)
class OfficialQuestions:
    """The questions that the published script asks about an item, and what it counts besides.

    Attributes:
        asked: in its order.
        num_left_out: pairs without a question or an answer, which it skips.
        num_stale: ``is_correct`` values of an earlier run in pairs that are not asked now, which it counts.
        num_stale_right: those of them that count as right.
    """

    asked: tuple[Question, ...]
    num_left_out: int
    num_stale: int
    num_stale_right: int


@dataclass(frozen=True, slots=True)
class OfficialArea:
    """An edit area as the published script takes it.

    Attributes:
        boxes: in the input picture's own pixels; empty for the whole picture.
        fault: why the item is dropped from the PSNR; None where it is not.
        is_list: true if the file has a list with entries, which is what names the kind of evaluation.
    """

    boxes: tuple[Box, ...]
    fault: str | None
    is_list: bool


def official_questions(record: Mapping[str, object], *, is_asked: bool) -> OfficialQuestions:
    """Returns the questions of an item of ``meta_info.json``.

    Args:
        record: the item.
        is_asked: false for an item without output, of which only values of an earlier run count.
    """
    asked: list[Question] = []
    stale = [bool(pair["is_correct"]) for _, pair in _entries(record.get("qa_pairs")) if "is_correct" in pair]
    num_left_out = 0
    for group, pair in _entries(record.get("annotated_qa_pairs")):
        is_complete = bool(pair.get("question") and pair.get("answer"))
        if is_asked and is_complete:
            asked.append(_question(pair, group))
            continue
        num_left_out += not is_complete
        if "is_correct" in pair:
            stale.append(bool(pair["is_correct"]))
    return OfficialQuestions(tuple(asked), num_left_out, len(stale), sum(stale))


def official_area(value: object) -> OfficialArea:
    """Returns the edit area of an item; ``value`` is what ``edit_area`` holds, None where it is missing."""
    if isinstance(value, str):
        fault = None if value == UNKNOWN_AREA else f"edit_area is the text {value!r}"
        return OfficialArea((), fault, is_list=False)
    if not value:
        return OfficialArea((), None, is_list=False)
    if not isinstance(value, Sequence):
        return OfficialArea((), f"edit_area is a {type(value).__name__}", is_list=False)
    boxes = [_rectangle(area) for area in value]
    whole = [box for box in boxes if box is not None]
    fault = None if len(whole) == len(boxes) else "an edit area lacks one of its four numbers"
    return OfficialArea(tuple(whole), fault, is_list=True)


def official_output(record: Mapping[str, object], folder: Path) -> str | None:
    """Returns the output path that the judges' scripts use, relative to ``folder`` or absolute; None without one.

    Where there is no such file, and the path begins with the folder's own name, it is looked for without that.
    """
    raw = next((record[key] for key in OUTPUT_KEYS if record.get(key)), None)
    if not isinstance(raw, str):
        return None
    parts = Path(raw).parts
    if Path(raw).is_absolute() or (folder / raw).exists() or not parts or parts[0] != folder.resolve().name:
        return raw
    stripped = Path(*parts[1:])
    return str(stripped) if (folder / stripped).exists() else raw


def opens_no_file(path: object) -> bool:
    """Tells whether the PSNR script finds no file although one lies there: the path ends as a folder's would."""
    return isinstance(path, str) and path.endswith(("/", "/."))


def crop_name(place: int, group: str, place_in_group: int) -> str:
    """Returns the name under which PicaEval_gpt.py saves the crop of a question.

    Args:
        place: of the item in the file.
        group: of the question; ``annotated_qa`` where there are none.
        place_in_group: of the question.
    """
    return f"{place:04d}_{group.replace(' ', '_').replace('QA', 'qa')}_{place_in_group:03d}_{VIZ_MODE}.jpg"


def official_label(record: Mapping[str, object], key: str) -> str:
    """Returns a label as it comes out as a key of the published analysis."""
    value = record.get(key, "unknown")
    return value if isinstance(value, str) else json.dumps(value)


def rows_of_columns(pairs: Mapping[str, object]) -> list[dict[str, object]] | None:
    """Returns the pairs of a dict of columns; None for a dict of groups, also one whose groups have those names."""
    columns = [column for name in _COLUMNS if isinstance(column := pairs.get(name), list)]
    if len(columns) < len(_COLUMNS) or all(isinstance(entry, Mapping) for entry in columns[0]):
        return None
    return [dict(zip(_COLUMNS, row, strict=True)) for row in zip(*columns, strict=False)]


def _entries(container: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The pairs of a list, or of a dict of lists with their group's name."""
    rows = rows_of_columns(container) if isinstance(container, Mapping) else container
    groups = container.items() if isinstance(container, Mapping) and rows is None else {"": rows}.items()
    for group, pairs in groups:
        if isinstance(pairs, list):
            yield from ((group, pair) for pair in pairs if isinstance(pair, Mapping))


def _question(pair: Mapping[str, object], group: str) -> Question:
    text, answer = pair["question"], pair["answer"]
    faults = [
        f"its {name} is no text but {value!r}"
        for name, value in (("question", text), ("answer", answer))
        if not isinstance(value, str)
    ]
    box = _question_box(pair.get("box", {})) if _can_be_saved(group) else None
    return Question(_text(text), _text(answer), box, "; ".join(faults) or None)


def _can_be_saved(group: str) -> bool:
    """Tells whether a file can have the name of a crop, of which the group's name becomes a part."""
    try:
        name = os.fsencode(crop_name(0, group, 0))
    except UnicodeEncodeError:  # half a character
        return False
    return len(name) <= _NAME_BYTES and not set(b"/\0") & set(name)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _question_box(value: object) -> Box | None:
    """The box that the crop is made with; None where making it fails, so that the whole picture is shown.

    A number that is missing is 0: a question without any shows the picture's upper left corner.
    """
    box = _rectangle({**dict.fromkeys(_SIDES, 0), **value}) if isinstance(value, Mapping) else None
    return None if box is None else _with_finite_numbers(box)


def _with_finite_numbers(box: Box) -> Box | None:
    """A box that is cropped alike: where NaN and infinity, which files may hold, reach to the picture's edge."""
    x, width = _finite_side(box.x, box.width)
    y, height = _finite_side(box.y, box.height)
    return None if math.inf in (x, y) else Box(x, y, width, height)


def _finite_side(start: float, length: float) -> tuple[float, float]:
    end = start + length
    if start == math.inf or end == -math.inf:
        return math.inf, 0.0  # cannot be cropped: no pixel is there, or it ends before it begins
    if math.isnan(end) or end == math.inf:
        return (start if start > 0 else 0.0), _BEYOND
    return start, length


def _rectangle(value: object) -> Box | None:
    sides = [value.get(name) for name in _SIDES] if isinstance(value, Mapping) else []
    try:
        numbers = [float(side) for side in sides if isinstance(side, int | float)]
    except OverflowError:  # a whole number beyond all floats
        return None
    return Box(*numbers) if len(numbers) == len(_SIDES) else None
