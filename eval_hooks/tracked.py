"""What a tracker shows of an evaluation beside its numbers: the same pictures every time, and every answer.

Shape legend: H W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.images import read_rgb
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.metrics.metric import Answer
from physedit.eval_hooks.panel import asked_of
from physedit.eval_hooks.picabench.folder import EditedItem, read_meta_info
from physedit.eval_hooks.picabench.measure import read_records, reading_of

PANEL_FOLDER = "panel"
ANSWER_COLUMNS = (
    "item", "law", "instruction", "question", "reference", "base", "tuned", "base_correct", "tuned_correct",
)  # fmt: skip
_BASE_FOLDER = "base"
_SIDE_PX = 320
"""Ours: the long side of a picture in the panel, so that a hundred evaluations stay small."""
_JPEG_QUALITY = 90

Cell = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Pictured:
    """An item's source, base and tuned picture side by side, as a JPEG, with a line to read below it."""

    path: Path
    caption: str


def write_fixed_panel(report: EvalReport, *, per_law: int = 1) -> tuple[Pictured, ...]:
    """Writes the first ``per_law`` items of every law by their order: the same items at every checkpoint.

    Unlike ``panel.choose_panel`` it looks at no answer, so that one item can be followed over the steps.

    Raises:
        FileNotFoundError: the report's pictures or those of the base are gone.
    """
    base_folder = report.folder.parent / _BASE_FOLDER
    base = {item.index: item for item in _items(base_folder)}
    by_law: dict[str, list[EditedItem]] = {}
    for item in _items(report.folder):
        if item.index in base:
            by_law.setdefault(item.law, []).append(item)
    chosen = [item for law in by_law for item in by_law[law][:per_law]]
    folder = report.folder / PANEL_FOLDER
    folder.mkdir(exist_ok=True)
    pictured = []
    for item in chosen:
        paths = (
            report.folder / item.input_path,
            base_folder / base[item.index].output_path,
            report.folder / item.output_path,
        )
        path = folder / f"{item.index:04d}.jpg"
        _side_by_side(paths).save(path, format="JPEG", quality=_JPEG_QUALITY)
        pictured.append(Pictured(path, f"{item.index} {item.law}: {item.instruction} (source, base, tuned)"))
    return tuple(pictured)


def answer_rows(report: EvalReport) -> list[list[Cell]]:
    """Returns a row of ``ANSWER_COLUMNS`` for every question that base and tuned picture of an item share.

    Raises:
        FileNotFoundError: the report's folder or that of the base is gone.
    """
    base = {record.index: record for record in read_records(report.folder.parent / _BASE_FOLDER)}
    tuned = {record.index: record for record in read_records(report.folder)}
    rows: list[list[Cell]] = []
    for item in _items(report.folder):
        if item.index in base and item.index in tuned:
            for asked in asked_of(item, base[item.index], tuned[item.index]):
                about: list[Cell] = [item.index, item.law, item.instruction, asked.question, asked.reference]
                rows.append([*about, *_verdicts(asked.base, asked.tuned), *_rights(asked.base, asked.tuned)])
    return rows


def _items(folder: Path) -> Sequence[EditedItem]:
    return read_meta_info(folder, reading_of(folder))


def _verdicts(*answers: Answer | None) -> list[Cell]:
    return [None if answer is None else str(answer.verdict) for answer in answers]


def _rights(*answers: Answer | None) -> list[Cell]:
    return [None if answer is None else answer.correct for answer in answers]


def _side_by_side(paths: Sequence[Path]) -> Image.Image:
    """Returns the pictures in a row, each with a long side of ``_SIDE_PX``."""
    pictures = [as_image(read_rgb(path)) for path in paths]
    scales = [_SIDE_PX / max(picture.size) for picture in pictures]
    scaled = [
        picture.resize(
            (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))),
            Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS,
        )
        for picture, scale in zip(pictures, scales, strict=True)
    ]
    row = Image.new("RGB", (sum(each.width for each in scaled), max(each.height for each in scaled)), "white")
    left = 0
    for each in scaled:
        row.paste(each, (left, 0))
        left += each.width
    return row
