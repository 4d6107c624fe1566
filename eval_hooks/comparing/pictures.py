"""The same items of all runs side by side, as small pictures for the page.

Shape legend: H W pixels.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from physedit.eval_hooks.comparing.comparison import HookComparison
from physedit.eval_hooks.comparing.tests import Records, records_of
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord
from physedit.eval_hooks.picabench.benchmark_rows import META_INFO
from physedit.eval_hooks.picabench.folder import TARGETS, EditedItem, picture_name
from physedit.eval_hooks.picabench.folder import read_meta_info as read_items
from physedit.eval_hooks.picabench.manifest import read_manifest
from physedit.eval_hooks.picabench.names import law_name

MOST_PICTURED_RUNS = 12
"""Of a page: more do not fit beside each other."""
_THUMBNAIL_PX = 192
_PIXEL_ART_BELOW_PX = 96


@dataclass(frozen=True, slots=True)
class Cell:
    """A picture of an item.

    Attributes:
        title: ``source``, ``base``, a run's name or ``target``.
        run: the run whose edit it is; None for the others.
        picture: as a data URI.
        answers: a mark and a word for each question; empty where nothing is asked.
        flip: which of its answers changed sides against the run's own base: ``gained`` (only from wrong to right),
            ``lost``, ``both`` or ``unchanged``; empty without a run.
    """

    title: str
    run: str | None
    picture: str
    answers: tuple[str, ...]
    flip: str


@dataclass(frozen=True, slots=True)
class Row:
    """An item: what was asked of the editors and of the judge, and the pictures."""

    index: int
    law: str
    instruction: str
    questions: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """A folder of edits with what is known of its items."""

    folder: Path
    items: Mapping[int, EditedItem]
    records: Records


def picture_rows(hook: HookComparison, *, per_law: int = 2) -> tuple[Row, ...]:
    """Returns up to ``per_law`` items of every law that all pictured runs have, those first on which runs differ most.

    The choice shows differences; it is no random sample. At most ``MOST_PICTURED_RUNS`` runs are pictured.
    """
    places = {name: each.folder for name, each in hook.evaluations.items() if each.folder and _is_pictured(each.folder)}
    tuned = {name: _side(folder) for name, folder in list(places.items())[:MOST_PICTURED_RUNS]}
    bases = {name: _side(side.folder.parent / "base") for name, side in tuned.items()}
    if not tuned:
        return ()
    common = set.intersection(*(set(side.items) & set(side.records) for side in (*tuned.values(), *bases.values())))
    items = next(iter(tuned.values())).items
    by_law: dict[str, list[int]] = {}
    for index in sorted(common, key=lambda i: (-_spread(i, tuned), i)):
        by_law.setdefault(law_name(items[index].law), []).append(index)
    chosen = {law: sorted(indices[:per_law]) for law, indices in sorted(by_law.items())}
    return tuple(_row(index, law, tuned, bases) for law, indices in chosen.items() for index in indices)


def _is_pictured(folder: Path) -> bool:
    return (folder / META_INFO).exists() and (folder.parent / "base" / META_INFO).exists()


def _side(folder: Path) -> _Side:
    return _Side(folder, {item.index: item for item in read_items(folder)}, records_of(folder))


def _spread(index: int, tuned: Mapping[str, _Side]) -> int:
    right = [sum(answer.correct is True for answer in side.records[index].answers) for side in tuned.values()]
    return max(right) - min(right)


def _row(index: int, law: str, tuned: Mapping[str, _Side], bases: Mapping[str, _Side]) -> Row:
    first = next(iter(tuned.values()))
    item = first.items[index]
    cells = [Cell("source", None, _thumbnail(first.folder / item.input_path), (), "")]
    for title, base in _different_bases(bases).items():
        cells.append(Cell(title, None, _output(base, index), _marks(base.records[index].answers), ""))
    for name, side in tuned.items():
        before, after = bases[name].records[index], side.records[index]
        cells.append(Cell(name, name, _output(side, index), _marks(after.answers), _flip(before, after)))
    target = next(iter(bases.values())).folder / TARGETS / picture_name(index)
    if target.exists():
        cells.append(Cell("target", None, _thumbnail(target), (), ""))
    questions = tuple(f"{question.text} ({question.answer})" for question in item.questions)
    return Row(index, law, item.instruction, questions, tuple(cells))


def _different_bases(bases: Mapping[str, _Side]) -> dict[str, _Side]:
    """The bases by title, each once: runs of one editor share one."""
    found: dict[str, tuple[list[str], _Side]] = {}
    for name, side in bases.items():
        manifest = read_manifest(side.folder)
        key = manifest.key if manifest else str(side.folder)
        found.setdefault(key, ([], side))[0].append(name)
    if len(found) == 1:
        return {"base": next(iter(bases.values()))}
    return {f"base of {', '.join(names)}": side for names, side in found.values()}


def _output(side: _Side, index: int) -> str:
    return _thumbnail(side.folder / side.items[index].output_path)


def _flip(before: ItemRecord, after: ItemRecord) -> str:
    was = {answer.number: answer.correct for answer in before.answers}
    moves = {(was.get(answer.number), answer.correct) for answer in after.answers}
    gained, lost = (False, True) in moves, (True, False) in moves
    if gained and lost:
        return "both"
    if gained:
        return "gained"
    return "lost" if lost else "unchanged"


def _marks(answers: Sequence[Answer]) -> tuple[str, ...]:
    marks = {True: "✓", False: "✗", None: "?"}
    return tuple(f"{marks[answer.correct]} {answer.verdict}" for answer in answers)


def _thumbnail(path: Path) -> str:
    """The picture as a data URI: PNG as it is if it is tiny, else a JPEG of at most ``_THUMBNAIL_PX``."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    buffer = io.BytesIO()
    if max(image.size) <= _PIXEL_ART_BELOW_PX:
        image.save(buffer, format="PNG", optimize=True)
        kind = "png"
    else:
        image.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.LANCZOS)
        image.save(buffer, format="JPEG", quality=82, optimize=True)
        kind = "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
