"""``output.json``: ``meta_info.json`` with what was answered, as the published script writes it for the leaderboard.

The published names are ``meta_info_gpt_output_1024_crop_box_and_resize.json`` and ``..._vllm_output_...``; its analysis
of this file is ``analysis.json``. Every pair that was asked gets ``model_answer``, ``model_response``,
``model_explanation`` and ``is_correct``; where the judge was shown a region ``visualization_path`` and ``viz_mode``;
where the call failed ``error``. A question that is not scored has no ``is_correct``, so that no accuracy counts it.

Source: github.com/Andrew0613/PICABench at 0514acd, PicaEval_gpt.py (``evaluate_with_gpt``, ``generate_viz_filename``).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.files import read_json_lines, write_text
from physedit.eval_hooks.judges.crops import falls_back
from physedit.eval_hooks.judges.judge import VerdictKind
from physedit.eval_hooks.picabench.annotations import Question, question_record
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO
from physedit.eval_hooks.picabench.folder import EditedItem, read_all_items
from physedit.eval_hooks.picabench.judging import ITEMS_FILE
from physedit.eval_hooks.picabench.measure import measured_rows, reading_of
from physedit.eval_hooks.picabench.official_annotations import VIZ_MODE, crop_name, rows_of_columns

OUTPUT_FILE = "output.json"
ADDED_KEYS = (
    "model_answer", "model_response", "model_explanation", "is_correct", "visualization_path", "viz_mode", "error",
)  # fmt: skip
"""What the published script adds to a pair; values of an earlier run are replaced."""

_PAIRS = "annotated_qa_pairs"
_GROUP_OF_A_LIST = "annotated_qa"


def write_official_output(folder: Path, out: Path | None = None) -> None:
    """Writes ``output.json`` of a folder that is judged and measured.

    The crops that ``visualization_path`` names are not kept: they follow from picture and box.

    Args:
        folder: the pictures, with their ``meta_info.json``.
        out: where answers and measurements lie and the file goes; None for the folder itself.
    """
    out = out or folder
    text = json.dumps(output_of(folder, out), ensure_ascii=False, indent=2)  # NaN stays where meta_info.json has it
    write_text(out / OUTPUT_FILE, text)


def output_of(folder: Path, out: Path) -> list[dict[str, object]]:
    """Returns what ``output.json`` holds: the items of ``meta_info.json`` in order, their pairs with the answers."""
    records = json.loads((folder / META_INFO).read_text(encoding="utf-8"))
    items = read_all_items(folder, reading_of(out))
    sizes = {row["index"]: row["judged_size"] for row in measured_rows(out)}
    rows = {(row["index"], row["number"]): row for row in read_json_lines(out / ITEMS_FILE)}
    return [
        _with_answers(record, _Answered(place, item, sizes.get(item.index), rows))
        for place, (record, item) in enumerate(zip(records, items, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _Answered:
    """An item, its place in the file, and the answers of all items."""

    place: int
    item: EditedItem
    judged_size: object
    rows: Mapping[tuple[object, object], Mapping[str, object]]

    def added(self, number: int, group: str, place_in_group: int) -> dict[str, object]:
        """What is added to the pair of a question; nothing if it has no answer."""
        row = self.rows.get((self.item.index, number))
        if row is None or row["verdict"] == VerdictKind.UNSCORED.value:
            return {}
        is_refused = row["verdict"] == VerdictKind.REFUSED.value  # has no text, and so nothing to explain
        added = {
            "model_answer": row.get("answer") or str(row["verdict"]).capitalize(),
            "model_response": "" if is_refused else row["raw"],
            "model_explanation": "" if is_refused else row["explanation"],
            "is_correct": row["correct"],
            **self._visualization(self.item.questions[number], group, place_in_group),
        }
        if row["verdict"] == VerdictKind.ERROR.value:
            added |= {"model_explanation": "", "error": row["explanation"]}
        return {key: value for key, value in added.items() if value is not None}

    def _visualization(self, question: Question, group: str, place_in_group: int) -> dict[str, object]:
        size = self.judged_size
        if not isinstance(size, Sequence) or falls_back(int(size[0]), int(size[1]), question.box) or question.fault:
            return {}
        name = crop_name(self.place, group, place_in_group)
        return {"visualization_path": f"visualization_annotated_qa_{VIZ_MODE}/{name}", "viz_mode": VIZ_MODE}


def _with_answers(record: Mapping[str, object], answered: _Answered) -> dict[str, object]:
    pairs = _plain(record.get(_PAIRS))
    is_asked = bool(answered.item.output_path)
    asked = [entry for entry in _entries(pairs) if is_asked and entry[2].get("question") and entry[2].get("answer")]
    if len(asked) != len(answered.item.questions):  # a shape that the published script does not read
        pairs = [question_record(question) for question in answered.item.questions]
        asked = list(_entries(pairs))
    for number, (group, place, pair) in enumerate(asked):
        for key in ADDED_KEYS:
            pair.pop(key, None)
        pair.update(answered.added(number, group, place))
    return {**record, _PAIRS: pairs} if _PAIRS in record else dict(record)


def _plain(pairs: object) -> object:
    """Returns the pairs as a list, or a dict of lists, that can be written to; columns become a list of pairs."""
    if isinstance(pairs, Mapping):
        rows = rows_of_columns(pairs)
        return {group: _plain(entries) for group, entries in pairs.items()} if rows is None else rows
    if isinstance(pairs, list):
        return [dict(pair) if isinstance(pair, Mapping) else pair for pair in pairs]
    return pairs


def _entries(pairs: object) -> Iterator[tuple[str, int, dict[str, object]]]:
    """The pairs with their group and their place in it."""
    groups = pairs.items() if isinstance(pairs, dict) else [(_GROUP_OF_A_LIST, pairs)]
    for group, entries in groups:
        if isinstance(entries, list):
            yield from ((group, place, pair) for place, pair in enumerate(entries) if isinstance(pair, dict))
