"""The published scripts' own result files, written from judged and measured items.

Keys, grouping and arithmetic are theirs: an item's accuracy is its share of right answers, and every other accuracy is
a mean over items, in the order of the file, so that sums come out equal to the last bit.

Source: github.com/Andrew0613/PICABench at 0514acd, PicaEval_gpt.py (``calculate_accuracy_by_dimension``) and
PicaEval_consistency.py (``process_meta_info``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from physedit.eval_hooks.files import read_json_lines, write_json
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO
from physedit.eval_hooks.picabench.folder import EditedItem, read_all_items
from physedit.eval_hooks.picabench.judging import ITEMS_FILE
from physedit.eval_hooks.picabench.measure import measured_rows, reading_of
from physedit.eval_hooks.picabench.official_output import write_official_output

ANALYSIS_FILE, PSNR_FILE, PSNR_512_FILE = "analysis.json", "psnr_analysis.json", "psnr_analysis_512.json"
# PicaEval_consistency.py names the kind of evaluation after its first ten items.
_NUM_ITEMS_THAT_NAME = 10


def write_official_files(folder: Path, out: Path | None = None) -> None:
    """Writes ``analysis.json``, ``output.json`` and ``psnr_analysis.json``, also ``_512``, with the published keys.

    A question that is not scored is absent from every number; one that the protocol counts as wrong is in.

    Args:
        folder: the pictures, with their ``meta_info.json``.
        out: where answers and measurements lie and the files go; None for the folder itself.
    """
    out = out or folder
    items = read_all_items(folder, reading_of(out))
    write_json(out / ANALYSIS_FILE, analysis_of(items, _correct_by_item(out)))
    measured = {row["index"]: row for row in measured_rows(out)}
    meta_info = META_INFO if out == folder else str(folder / META_INFO)  # beside it: the folder can be moved
    for name, key in ((PSNR_FILE, "psnr_db"), (PSNR_512_FILE, "psnr_512_db")):
        values = [_decibels(measured.get(item.index, {}).get(key)) for item in items]
        write_json(out / name, psnr_analysis_of(items, values, meta_info))
    write_official_output(folder, out)


def analysis_of(items: Sequence[EditedItem], correct: Mapping[int, Sequence[bool]]) -> dict[str, object]:
    """Returns what ``analysis.json`` holds: accuracies in per cent, means over items.

    Args:
        items: all of the folder, in its order.
        correct: whether each scored question is right, by item index.
    """
    scores = [_score(item, correct.get(item.index, ())) for item in items]
    scored = [score for score in scores if score.num_questions]
    return {
        "overall_accuracy": _mean_accuracy(scored),
        "sample_count": len(scored),
        "qa_total": sum(score.num_questions for score in scored),
        "by_category": _grouped(scored, lambda item: item.category),
        "by_law": _grouped(scored, lambda item: item.law),
        "by_operation": _grouped(scored, lambda item: item.operation),
    }


def psnr_analysis_of(
    items: Sequence[EditedItem], values: Sequence[float | None], meta_info_path: str
) -> dict[str, object]:
    """Returns what ``psnr_analysis.json`` holds: means in dB over the items on which the PSNR is defined.

    Args:
        items: all of the folder, in its order.
        values: of each item in dB, None where it is not defined.
        meta_info_path: is repeated in the file.
    """
    valid = [value for value in values if value is not None]
    overall: dict[str, float | int | None] = {**_spread(valid), "min": None, "max": None, "median": None}
    if valid:
        overall |= {"min": min(valid), "max": max(valid), "median": float(np.median(valid))}
    return {
        "meta_info_path": meta_info_path,
        "total_items": len(items),
        "evaluation_type": _kind_of_evaluation(items),
        "overall_statistics": overall,
        "physics_category_statistics": _spreads([item.category for item in items], values),
        "physics_law_statistics": _spreads([item.law for item in items], values),
    }


@dataclass(frozen=True, slots=True)
class _Score:
    item: EditedItem
    num_right: int
    num_questions: int


def _score(item: EditedItem, correct: Sequence[bool]) -> _Score:
    num_right, num_questions = sum(correct), len(correct)
    if item.official is not None:
        num_right += item.official.num_stale_right
        num_questions += item.official.num_stale
    return _Score(item, num_right, num_questions)


def _mean_accuracy(scores: Sequence[_Score]) -> float:
    total = 0.0
    for score in scores:  # one after the other: sum() compensates its rounding, and the published script does not
        total += score.num_right / score.num_questions
    return 100.0 * total / len(scores) if scores else 0.0


def _grouped(scores: Sequence[_Score], group_of: Callable[[EditedItem], str]) -> dict[str, dict[str, float | int]]:
    groups: dict[str, list[_Score]] = {}
    for score in scores:
        groups.setdefault(group_of(score.item), []).append(score)
    return {
        name: {
            "accuracy": _mean_accuracy(group),
            "sample_count": len(group),
            "qa_total": sum(score.num_questions for score in group),
        }
        for name, group in groups.items()
    }


def _kind_of_evaluation(items: Sequence[EditedItem]) -> str:
    has_list = any(
        bool(item.edit_area) if item.official is None else item.official.lists_areas
        for item in items[:_NUM_ITEMS_THAT_NAME]
    )
    return "non_edited_region" if has_list else "full_image"


def _spreads(groups: Sequence[str], values: Sequence[float | None]) -> dict[str, dict[str, float | int | None]]:
    by_group: dict[str, list[float]] = {group: [] for group in groups}
    for group, value in zip(groups, values, strict=True):
        if value is not None:
            by_group[group].append(value)
    return {group: _spread(found) for group, found in by_group.items()}


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    if not values:
        return {"count": 0, "mean": None, "std": None}
    return {"count": len(values), "mean": float(np.mean(values)), "std": float(np.std(values))}


def _correct_by_item(out: Path) -> dict[int, list[bool]]:
    correct: dict[int, list[bool]] = {}
    for row in read_json_lines(out / ITEMS_FILE, ("index", "correct")):
        index = row["index"]
        assert isinstance(index, int)
        if row["correct"] is not None:
            correct.setdefault(index, []).append(bool(row["correct"]))
    return correct


def _decibels(value: object) -> float | None:
    assert value is None or isinstance(value, float | int)
    return None if value is None else float(value)
