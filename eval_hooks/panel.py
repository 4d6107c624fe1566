"""A small fixed choice of items to look at: source, base, checkpoint and target side by side.

Shape legend: H W pixels.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.images import read_rgb
from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO
from physedit.eval_hooks.picabench.folder import TARGETS, EditedItem, picture_name, read_meta_info
from physedit.eval_hooks.picabench.measure import read_records, reading_of

COLUMNS = ("source", "base", "tuned", "target")
_BASE_FOLDER = "base"

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what was answered about either picture; None where a side lacks the question."""

    question: str
    reference: str
    base: Answer | None
    tuned: Answer | None


@dataclass(frozen=True, slots=True)
class PanelItem:
    """One item to look at.

    Attributes:
        index, law, instruction: of the item.
        story: ``"put right"``, ``"improved"`` (faults are left), ``"still wrong"``, ``"got worse"`` or ``"unchanged"``.
        pictures: uint8 ``[3, H, W]`` by column name; a target only where the benchmark has one.
        asked: the questions in order.
    """

    index: int
    law: str
    instruction: str
    story: str
    pictures: dict[str, Tensor]
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class SheetRow:
    """A row of a picture sheet: a title, a line of text, and uint8 pictures ``[3, H, W]`` by column name."""

    title: str
    text: str
    pictures: Mapping[str, Tensor]


def has_pictures(report: EvalReport) -> bool:
    """True if the report is about edits, which can be looked at, and not about numbers alone."""
    return (report.folder / META_INFO).exists()


def choose_panel(report: EvalReport, *, per_law: int = 3) -> tuple[PanelItem, ...]:
    """Returns up to ``per_law`` items of every law: the first put right, the first with faults left, then by order.

    The choice shows what the checkpoint does and does not do; it is no random sample.

    Raises:
        FileNotFoundError: the report's pictures or those of the base are gone.
    """
    base_folder = report.folder.parent / _BASE_FOLDER
    base = {record.index: record for record in read_records(base_folder)}
    tuned = {record.index: record for record in read_records(report.folder)}
    items = {item.index: item for item in read_meta_info(report.folder, reading_of(report.folder))}
    stories = {index: _story(base[index], record) for index, record in tuned.items() if index in base}
    laws = dict.fromkeys(items[index].law for index in stories)
    return tuple(
        _panel_item(report.folder, base_folder, items[index], stories[index], base[index], tuned[index])
        for law in laws
        for index in _choose([i for i in stories if items[i].law == law], stories, per_law)
    )


def asked_of(item: EditedItem, base: ItemRecord | None, tuned: ItemRecord) -> tuple[Asked, ...]:
    """Returns an item's questions in order, each with both answers; where there is no base, with the one."""
    before, after = (
        {answer.number: answer for answer in (record.answers if record else ())} for record in (base, tuned)
    )
    return tuple(
        Asked(question.text, question.answer, before.get(number), after.get(number))
        for number, question in enumerate(item.questions)
    )


def write_sheet(path: Path, report: EvalReport, *, per_law: int = 1, scale: int = 4) -> Path:
    """Writes a PNG with a row per chosen item: source, base, tuned and target, enlarged without smoothing.

    The items are those of ``choose_panel``, so one row per law shows an item that was put right where there is one.

    Args:
        path: the file to write.
        report: whose pictures.
        per_law: rows of each law.
        scale: how many times the pictures are enlarged.

    Raises:
        FileNotFoundError: as ``choose_panel``.
    """
    panel = choose_panel(report, per_law=per_law)
    rows = [SheetRow(item.law.replace("_", " "), item.instruction, item.pictures) for item in panel]
    return draw_sheet(path, COLUMNS, rows, scale=scale)


def draw_sheet(path: Path, columns: Sequence[str], rows: Sequence[SheetRow], *, scale: int) -> Path:
    """Writes a PNG with a row of pictures each, enlarged without smoothing; columns without a picture are left out.

    Args:
        path: the file to write.
        columns: names in order.
        rows: at least one.
        scale: how many times the pictures are enlarged.
    """
    used = [name for name in columns if any(name in row.pictures for row in rows)]
    pictures = [picture for row in rows for name, picture in row.pictures.items() if name in used]
    width = max(picture.shape[-1] for picture in pictures) * scale
    height = max(picture.shape[-2] for picture in pictures) * scale
    sheet = _Sheet(used, width, height, rows=len(rows))
    for number, row in enumerate(rows):
        sheet.draw_row(number, row, scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.image.save(path, format="PNG", optimize=True)
    return path


class _Sheet:
    """The picture sheet: a heading, then a caption and the pictures of every row."""

    _MARGIN, _HEADING, _CAPTION = 12, 28, 44

    def __init__(self, columns: Sequence[str], width: int, height: int, *, rows: int) -> None:
        self._columns, self._width, self._height = columns, width, height
        self._row_height = height + self._CAPTION + self._MARGIN
        total_width = len(columns) * (width + self._MARGIN) + self._MARGIN
        self.image = Image.new("RGB", (total_width, self._HEADING + rows * self._row_height), "white")
        self._pen = ImageDraw.Draw(self.image)
        for column, name in enumerate(columns):
            self._pen.text((self._left(column), 8), name, fill="#444444", font=ImageFont.load_default(15))

    def draw_row(self, number: int, row: SheetRow, scale: int) -> None:
        """Draws caption and pictures of one row."""
        top = self._HEADING + number * self._row_height
        title_font, text_font = ImageFont.load_default(17), ImageFont.load_default(14)
        self._pen.text((self._MARGIN, top), row.title, fill="black", font=title_font)
        text = fitted(self._pen, row.text, self.image.width - 2 * self._MARGIN, text_font)
        self._pen.text((self._MARGIN, top + 21), text, fill="#444444", font=text_font)
        for column, name in enumerate(self._columns):
            if name in row.pictures:
                picture = as_image(row.pictures[name])
                size = (picture.width * scale, picture.height * scale)
                enlarged = picture.resize(size, Image.Resampling.NEAREST)
                self.image.paste(enlarged, (self._left(column), top + self._CAPTION))

    def _left(self, column: int) -> int:
        return self._MARGIN + column * (self._width + self._MARGIN)


def fitted(pen: ImageDraw.ImageDraw, text: str, room_px: int, font: Font) -> str:
    """Returns the text on one line, or as much of its start as has room, measured a few times however long it is."""
    whole = " ".join(text.split())
    start = whole[:room_px]  # a sign is about a pixel wide at least
    if start == whole and pen.textlength(whole, font=font) <= room_px:
        return whole

    def cut(length: int) -> str:
        return start[:length].rstrip(" .") + "…"

    def width_px(length: int) -> int:
        return math.ceil(pen.textlength(cut(length), font=font))

    num_fitting = bisect.bisect_right(range(1, len(start) + 1), room_px, key=width_px)
    return cut(max(num_fitting, 1))


def _story(base: ItemRecord, tuned: ItemRecord) -> str:
    before, after = (sum(answer.correct is True for answer in r.answers) for r in (base, tuned))
    has_faults = any(answer.correct is False for answer in tuned.answers)
    if after > before:
        return "improved" if has_faults else "put right"
    if after < before:
        return "got worse"
    return "still wrong" if has_faults else "unchanged"


def _choose(indices: Sequence[int], stories: dict[int, str], per_law: int) -> list[int]:
    def first(*wanted: str) -> list[int]:
        return next(([index] for index in indices if stories[index] in wanted), [])

    good = first("put right") or first("improved")
    faulty = [index for index in first("still wrong", "got worse") or first("improved") if index not in good]
    others = [index for index in indices if index not in good + faulty]
    return sorted((good + faulty + others)[:per_law])


def _panel_item(
    tuned_folder: Path,
    base_folder: Path,
    item: EditedItem,
    story: str,
    *records: ItemRecord,
) -> PanelItem:
    base, tuned = records
    paths = {
        "source": tuned_folder / item.input_path,
        "base": base_folder / item.output_path,
        "tuned": tuned_folder / item.output_path,
        "target": base_folder / TARGETS / picture_name(item.index),
    }
    return PanelItem(
        index=item.index,
        law=item.law,
        instruction=item.instruction,
        story=story,
        pictures={name: read_rgb(path) for name, path in paths.items() if name != "target" or path.exists()},
        asked=asked_of(item, base, tuned),
    )
