"""The folder between editing and judging, in PICABench's own layout.

``input_img/00000.png`` and ``output_img/00000.png`` by item index, and ``meta_info.json`` as the published scripts read
it. What made the pictures is in ``manifest``.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.sample import Box, DatasetLayoutError, Origin, PromptLevel
from physedit.eval_hooks.files import DamagedFileError, write_json
from physedit.eval_hooks.picabench.annotations import (
    Question,
    Reading,
    box_record,
    parse_edit_area,
    parse_questions,
    question_record,
)
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO, PROMPT_COLUMNS
from physedit.eval_hooks.picabench.official_annotations import (
    OUTPUT_KEYS,
    official_area,
    official_label,
    official_output,
    official_questions,
    opens_no_file,
)

INPUTS, OUTPUTS, TARGETS = "input_img", "output_img", "target_img"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class OfficialDetails:
    """What the published scripts make of an item beyond its questions and rectangles; the defaults are a plain item's.

    Attributes:
        psnr_output: the output that the PSNR script opens, which looks for the path just as it stands.
        area_fault: why it drops the item from the PSNR, also for a path that ends as a folder's; None if it does not.
        lists_areas: true if ``edit_area`` is a list with entries.
        num_left_out: pairs without a question or an answer, which are not asked.
        num_stale: values of an earlier run in pairs that are not asked, which are counted all the same.
        num_stale_right: those of them that count as right.
    """

    psnr_output: str
    area_fault: str | None = None
    lists_areas: bool = False
    num_left_out: int = 0
    num_stale: int = 0
    num_stale_right: int = 0


@dataclass(frozen=True, slots=True)
class EditedItem:
    """One edited picture and what is asked about it, as ``meta_info.json`` tells it.

    ``index`` is unique in its folder. ``edit_area`` is in the input picture's own pixels, or in the frame that the
    reader of a folder knows; paths are relative to the folder, or absolute. ``output_path`` is empty for an item
    without output, which only ``read_all_items`` returns. ``official`` is None where the reading was strict.
    """

    index: int
    category: str
    law: str
    operation: str
    level: str
    instruction: str
    questions: tuple[Question, ...]
    edit_area: tuple[Box, ...]
    input_path: str
    output_path: str
    official: OfficialDetails | None = None


def picture_name(index: int) -> str:
    """Returns the file name of an item's picture, which the published scripts look for."""
    return f"{index:05d}.png"


def write_meta_info(folder: Path, items: Sequence[BenchmarkItem], level: PromptLevel) -> None:
    """Writes ``meta_info.json`` with the keys of PICABench's ``prepare_meta_info.py``, and the prompts besides."""
    write_json(folder / META_INFO, [_meta_record(item, level) for item in items])


def read_meta_info(folder: Path, reading: Reading = Reading.STRICT) -> tuple[EditedItem, ...]:
    """Returns the items of ``meta_info.json`` that have an output, in its order; those of other tools are read too.

    Raises:
        DamagedFileError: no JSON.
        DatasetLayoutError: no such file, or no list of objects; read strictly also an item without index, input or
            output, and an index that is there twice.
        DatasetRowError: read strictly, questions or an edit area of another shape.
    """
    return tuple(item for item in read_all_items(folder, reading) if item.output_path)


def read_all_items(folder: Path, reading: Reading) -> tuple[EditedItem, ...]:
    """Returns the items of ``meta_info.json`` in its order, officially also those without output.

    Raises:
        DamagedFileError: as ``read_meta_info``.
        DatasetLayoutError: as ``read_meta_info``.
        DatasetRowError: as ``read_meta_info``.
    """
    path = folder / META_INFO
    records = _read_records(path)
    if reading is Reading.STRICT:
        items = tuple(_strict_item(record, path, row) for row, record in enumerate(records))
        _refuse_repeated(items, path)
        return items
    indices = [record.get("index") for record in records]
    numbers = [index for index in indices if isinstance(index, int) and not isinstance(index, bool)]
    is_unique = len(set(numbers)) == len(records)
    return tuple(
        _official_item(record, numbers[row] if is_unique else row, folder) for row, record in enumerate(records)
    )


def _meta_record(item: BenchmarkItem, level: PromptLevel) -> dict[str, object]:
    return {
        "index": item.index,
        "input_path": f"{INPUTS}/{picture_name(item.index)}",
        "output_path": f"{OUTPUTS}/{picture_name(item.index)}",
        "edit_instruction": item.instruction(level),
        "prompt_level": level.value,
        "physics_category": item.category,
        "physics_law": item.law,
        "edit_operation": item.operation,
        "difficulty": "unknown",
        **{column: item.prompts[prompt] for prompt, column in PROMPT_COLUMNS.items()},
        "annotated_qa_pairs": [question_record(question) for question in item.questions],
        "edit_area": [box_record(box) for box in item.edit_area] or None,
    }


def _read_records(path: Path) -> list[Mapping[str, object]]:
    if not path.exists():
        raise DatasetLayoutError(
            f"{path.parent} has no {META_INFO}, so it holds no finished edits. Run the evaluation that edits first."
        )
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        is_ours = (path.parent / MANIFEST).exists()
        again = f"Delete the folder {path.parent} to edit and judge anew."
        remedy = again if is_ours else "Mend the file, or have it written again by what made the folder."
        raise DamagedFileError(f"{path} is damaged: not JSON ({error}). {remedy}") from error
    if not isinstance(records, list):
        raise DatasetLayoutError(f"{path}: expected a list of items, found a {type(records).__name__}.")
    for row, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise DatasetLayoutError(f"{path}, item {row}: expected named values, found a {type(record).__name__}.")
    return records


def _strict_item(record: Mapping[str, object], path: Path, row: int) -> EditedItem:
    output = next((record[key] for key in OUTPUT_KEYS if record.get(key)), None)
    index, source = record.get("index"), record.get("input_path")
    if not isinstance(index, int) or not isinstance(source, str) or not isinstance(output, str):
        raise DatasetLayoutError(
            f"{path}, item {row}: expected index, input_path and output_path, found {', '.join(record)}. "
            "An item without output cannot be scored; edit it or remove it."
        )
    origin = Origin(str(path), row)
    return EditedItem(
        index=index,
        category=str(record.get("physics_category", "unknown")),
        law=str(record.get("physics_law", "unknown")),
        operation=str(record.get("edit_operation", "unknown")),
        level=str(record.get("prompt_level", "unknown")),
        instruction=str(record.get("edit_instruction", "")),
        questions=parse_questions(record.get("annotated_qa_pairs"), origin),
        edit_area=parse_edit_area(record.get("edit_area"), origin),
        input_path=source,
        output_path=official_output(record, path.parent) or output,
    )


def _refuse_repeated(items: Sequence[EditedItem], path: Path) -> None:
    counts = Counter(item.index for item in items)
    if repeated := [index for index, count in counts.items() if count > 1]:
        raise DatasetLayoutError(
            f"{path}: the index {repeated[0]} is there {counts[repeated[0]]} times. Give every item its own."
        )


def _official_item(record: Mapping[str, object], index: int, folder: Path) -> EditedItem:
    output = official_output(record, folder) or ""
    questions = official_questions(record, is_asked=bool(output))
    area = official_area(record.get("edit_area"))
    source, psnr_output = record.get("input_path"), record.get("output_path")
    is_no_file = opens_no_file(source) or opens_no_file(psnr_output)
    return EditedItem(
        index=index,
        category=official_label(record, "physics_category"),
        law=official_label(record, "physics_law"),
        operation=official_label(record, "edit_operation"),
        level=str(record.get("prompt_level", "unknown")),
        instruction=str(record.get("edit_instruction", "")),
        questions=questions.asked,
        edit_area=area.boxes,
        input_path=source if isinstance(source, str) else "",
        output_path=output,
        official=OfficialDetails(
            psnr_output=psnr_output if isinstance(psnr_output, str) else output,
            area_fault="one of its paths ends in a slash or a dot, where no file opens" if is_no_file else area.fault,
            lists_areas=area.is_list,
            num_left_out=questions.num_left_out,
            num_stale=questions.num_stale,
            num_stale_right=questions.num_stale_right,
        ),
    )
