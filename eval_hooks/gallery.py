"""All items of an evaluation beside those of the base, to be filtered by law and by which answers flipped."""

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
        pictures: source, base and tuned.
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
    """The items in their order, the laws found, how many items flipped which way, and how many show pictures."""

    items: tuple[GalleryItem, ...]
    laws: tuple[str, ...]
    counts: Mapping[str, int]
    num_with_pictures: int


def build_gallery(report: EvalReport, page_folder: Path, num_with_pictures: int = NUM_WITH_PICTURES) -> Gallery:
    """Returns the gallery of a report whose folder has pictures.

    Items with flipped answers show their pictures first, then the others in turn over the laws.

    Args:
        report: whose items.
        page_folder: where the page lies that links to the files.
        num_with_pictures: how many items show their pictures.

    Raises:
        FileNotFoundError: the pictures or those of the base are gone.
    """
    base_folder = report.folder.parent / "base"
    base = {record.index: record for record in read_records(base_folder)}
    tuned = {record.index: record for record in read_records(report.folder)}
    items = [each for each in read_meta_info(report.folder, reading_of(report.folder)) if each.index in tuned]
    both = [item for item in items if item.index in base]
    flips = {item.index: _flips(base[item.index], tuned[item.index]) for item in both}
    shown = set(_by_interest(both, flips)[:num_with_pictures])
    found = tuple(
        _item(item, flips[item.index], asked_of(item, base[item.index], tuned[item.index]), pictures)
        for item in both
        for pictures in [
            tuple(
                _picture(name, path, page_folder, is_shown=item.index in shown)
                for name, path in _paths(report.folder, base_folder, item).items()
            )
        ]
    )
    return Gallery(
        items=found,
        laws=tuple(dict.fromkeys(item.law for item in both)),
        counts={kind: sum(kind in item.flips for item in found) for kind in (GAINED, LOST, UNCHANGED)},
        num_with_pictures=len(shown),
    )


def _item(
    item: EditedItem, flips: tuple[str, ...], asked: tuple[Asked, ...], pictures: tuple[GalleryPicture, ...]
) -> GalleryItem:
    num_open = sum(any(side is None or side.correct is None for side in (each.base, each.tuned)) for each in asked)
    return GalleryItem(item.index, item.law, item.instruction, flips, num_open, pictures, asked)


def _flips(base: ItemRecord, tuned: ItemRecord) -> tuple[str, ...]:
    before = {answer.number: answer.correct for answer in base.answers}
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


def _paths(tuned_folder: Path, base_folder: Path, item: EditedItem) -> dict[str, Path]:
    return {
        "source": tuned_folder / item.input_path,
        "base": base_folder / item.output_path,
        "tuned": tuned_folder / item.output_path,
    }


def _picture(name: str, path: Path, page_folder: Path, *, is_shown: bool) -> GalleryPicture:
    link = quote(Path(os.path.relpath(path, page_folder)).as_posix())
    data_uri, is_pixel_art = thumbnail(path) if is_shown else (None, False)
    return GalleryPicture(name, link, data_uri, is_pixel_art)
