"""All items of an evaluation, beside the base's if there is one, to be filtered by law and by which answers flipped."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from physedit.eval_hooks.hook import EvalReport
from physedit.eval_hooks.metrics.metric import ItemRecord
from physedit.eval_hooks.panel import Asked, asked_of
from physedit.eval_hooks.picabench.folder import EditedItem, read_meta_info
from physedit.eval_hooks.picabench.measure import read_records, reading_of
from physedit.eval_hooks.thumbnails import thumbnail

GAINED, LOST, UNCHANGED = "gained", "lost", "unchanged"
NUM_WITH_PICTURES = 120
"""So many items show their pictures in the page itself, which so stays at a few MB; the others link to their files."""


@dataclass(frozen=True, slots=True)
class GalleryPicture:
    """A picture of an item: the file relative to the page, and the picture itself as a data URI where it is shown.

    ``is_pixel_art`` asks for enlargement without smoothing.
    """

    name: str
    link: str
    data_uri: str | None
    is_pixel_art: bool = False


@dataclass(frozen=True, slots=True)
class GalleryItem:
    """One item.

    Attributes:
        index, law, instruction: of the item.
        flips: ``gained`` if a wrong answer became right, ``lost`` if a right one became wrong, both, or ``unchanged``.
        num_open: questions without yes or no on either side.
        pictures: source, base and tuned; source and output where there is no base.
        asked: the questions in order.
    """

    index: int
    law: str
    instruction: str
    flips: tuple[str, ...]
    num_open: int
    pictures: tuple[GalleryPicture, ...]
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class Gallery:
    """The items in their order, the laws found, how many items flipped which way, and how many show pictures.

    Without a base (``has_base``) no answer flips, and every item counts as unchanged.
    """

    items: tuple[GalleryItem, ...]
    laws: tuple[str, ...]
    counts: Mapping[str, int]
    num_with_pictures: int
    has_base: bool


def build_gallery(
    report: EvalReport, page_folder: Path, num_with_pictures: int = NUM_WITH_PICTURES, *, outputs: Path | None = None
) -> Gallery:
    """Returns the gallery of a report with pictures.

    Items with flipped answers show their pictures first, then the others in turn over the laws.

    Args:
        report: whose items.
        page_folder: where the page lies that links to the files.
        num_with_pictures: how many items show their pictures.
        outputs: where the pictures lie if there is no base; None for the report's own folder, beside that of the base.

    Raises:
        FileNotFoundError: the pictures or those of the base are gone.
    """
    folder, base_folder = outputs or report.folder, None if outputs else report.folder.parent / "base"
    base = {} if base_folder is None else {record.index: record for record in read_records(base_folder)}
    tuned = {record.index: record for record in read_records(folder, report.folder)}
    items = [each for each in read_meta_info(folder, reading_of(report.folder)) if each.index in tuned]
    shown_items = [item for item in items if base_folder is None or item.index in base]
    flips = {item.index: _flips(base.get(item.index), tuned[item.index]) for item in shown_items}
    shown = set(_by_interest(shown_items, flips)[:num_with_pictures])
    found = tuple(
        _item(item, flips[item.index], (base.get(item.index), tuned[item.index]), pictures)
        for item in shown_items
        for pictures in [
            tuple(
                _picture(name, path, page_folder, is_shown=item.index in shown)
                for name, path in _paths(folder, base_folder, item).items()
            )
        ]
    )
    return Gallery(
        items=found,
        laws=tuple(dict.fromkeys(item.law for item in shown_items)),
        counts={kind: sum(kind in item.flips for item in found) for kind in (GAINED, LOST, UNCHANGED)},
        num_with_pictures=len(shown),
        has_base=base_folder is not None,
    )


def _item(
    item: EditedItem,
    flips: tuple[str, ...],
    records: tuple[ItemRecord | None, ItemRecord],
    pictures: tuple[GalleryPicture, ...],
) -> GalleryItem:
    base, tuned = records
    asked = asked_of(item, base, tuned)
    sides = [(each.tuned,) if base is None else (each.base, each.tuned) for each in asked]
    num_open = sum(any(side is None or side.correct is None for side in pair) for pair in sides)
    return GalleryItem(item.index, item.law, item.instruction, flips, num_open, pictures, asked)


def _flips(base: ItemRecord | None, tuned: ItemRecord) -> tuple[str, ...]:
    before = {answer.number: answer.correct for answer in base.answers} if base else {}
    changes = [(before.get(answer.number), answer.correct) for answer in tuned.answers]
    kinds = ((GAINED, (False, True)), (LOST, (True, False)))
    return tuple(kind for kind, change in kinds if change in changes) or (UNCHANGED,)


def _by_interest(items: Sequence[EditedItem], flips: Mapping[int, tuple[str, ...]]) -> list[int]:
    """Indices of flipped items, then of the others: the first of every law, the second of every law, and so on."""
    flipped = [item.index for item in items if flips[item.index] != (UNCHANGED,)]
    by_law: dict[str, list[int]] = {}
    for item in items:
        if flips[item.index] == (UNCHANGED,):
            by_law.setdefault(item.law, []).append(item.index)
    rounds = max((len(indices) for indices in by_law.values()), default=0)
    return flipped + [indices[place] for place in range(rounds) for indices in by_law.values() if place < len(indices)]


def _paths(folder: Path, base_folder: Path | None, item: EditedItem) -> dict[str, Path]:
    source, edited = folder / item.input_path, folder / item.output_path
    if base_folder is None:
        return {"source": source, "output": edited}
    return {"source": source, "base": base_folder / item.output_path, "tuned": edited}


def _picture(name: str, path: Path, page_folder: Path, *, is_shown: bool) -> GalleryPicture:
    link = quote(Path(os.path.relpath(path, page_folder)).as_posix(), errors="surrogatepass")
    data_uri, is_pixel_art = thumbnail(path) if is_shown else (None, False)
    return GalleryPicture(name, link, data_uri, is_pixel_art)
