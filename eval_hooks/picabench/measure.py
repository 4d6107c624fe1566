"""Measuring the pictures of a folder, and reading everything that is known about them."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from PIL import Image
from torch import Tensor

from physedit.data_loaders.images import read_rgb
from physedit.data_loaders.sample import Box
from physedit.eval_hooks.files import DamagedFileError, digest_of, file_digest, read_json_lines, write_json_lines
from physedit.eval_hooks.judges.protocols import read_as_official
from physedit.eval_hooks.metrics.consistency import psnr_in_square, psnr_outside
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.answer_rows import ANSWER_KEYS
from physedit.eval_hooks.picabench.folder import EditedItem, read_meta_info
from physedit.eval_hooks.picabench.judging import ITEMS_FILE
from physedit.eval_hooks.picabench.manifest import read_manifest, verify_outputs
from physedit.eval_hooks.ranks import Ranks

CONSISTENCY_FILE = "consistency.jsonl"
_UNMEASURED: Mapping[str, object] = {
    "psnr_db": None,
    "psnr_512_db": None,
    "fault": None,
    "was_resized": False,
    "input_size": None,
    "output_size": None,
    "judged_size": None,
    "input_format": None,
    "input_to_original_db": None,
    "area_scale": 1.0,
}
"""What a line tells about a pair of pictures if nothing can be measured. Sizes are width and height.

``judged_size`` is that of the output as judges find it, whose paths are less literal than the official PSNR's.
"""
_KNOWN_BY = ("index", "measured_by", "input_sha256", "output_sha256")
MEASURED_KEYS = (*_KNOWN_BY, "rules", *_UNMEASURED)
_FRAME_LONG_SIDE_PX = 1024
_MOST_THREADS = 8


class MeasuringRules(StrEnum):
    """How pictures and edit areas are read for the PSNR."""

    OFFICIAL = "official"
    """As PicaEval_consistency.py does: edit areas in the input's own pixels, odd ones drop the item."""
    STRICT = "strict"
    """Edit areas in the frame whose long side is 1024, scaled to the stored input; odd ones are errors."""
    PLAIN = "plain"
    """Edit areas in the input's own pixels, odd ones are errors: for benchmarks that say so, as the embedded world."""

    @property
    def reading(self) -> Reading:
        """How the folder's annotations are read."""
        return Reading.OFFICIAL if self is MeasuringRules.OFFICIAL else Reading.STRICT


def measure_folder(
    folder: Path,
    ranks: Ranks | None = None,
    *,
    rules: MeasuringRules = MeasuringRules.PLAIN,
    original_of: Callable[[EditedItem], Tensor | None] | None = None,
    out: Path | None = None,
) -> None:
    """Writes ``consistency.jsonl``, a line for every item with an output; every rank must call it.

    Pictures whose measured bytes are still the same are not measured again.

    Args:
        folder: edits with their ``meta_info.json``.
        ranks: who shares the work; None for this process alone.
        rules: how pictures and edit areas are read.
        original_of: gives the picture from which an item's stored input was made, uint8 ``[3, H, W]``, so that the
            difference between the two is known; None where that is not at hand.
        out: where the measurements lie and are written; None for ``folder`` itself.
    """
    ranks, out = ranks or Ranks(), out or folder
    known = {_known_by(row): row for row in measured_rows(out)}

    def measure() -> None:
        manifest = read_manifest(folder)
        altered = verify_outputs(folder, manifest) if manifest else frozenset()
        task = _Measuring(folder, rules, known, altered, original_of)
        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
            rows = list(pool.map(task.row, ranks.share(read_meta_info(folder, rules.reading))))
        write_json_lines(out / f"consistency.{ranks.rank}.jsonl", rows)

    ranks.together(out, measure)
    ranks.first_alone(out, lambda: _merge(out, ranks.world_size, read_meta_info(folder, rules.reading)))


def read_records(folder: Path, out: Path | None = None) -> tuple[ItemRecord, ...]:
    """Returns what judge and measurement found on every item of the folder that has an output, in its order.

    Args:
        folder: the pictures, with their ``meta_info.json``.
        out: where answers and measurements lie; None for ``folder`` itself.

    Raises:
        DamagedFileError: a line lacks a key, or an item has no measurement.
    """
    out = out or folder
    answers: dict[object, list[Answer]] = {}
    for row in read_json_lines(out / ITEMS_FILE, (*ANSWER_KEYS, "index", "number", "reference", "kind", "correct")):
        answers.setdefault(row["index"], []).append(_answer(row))
    measured = {row["index"]: row for row in measured_rows(out)}
    items = read_meta_info(folder, reading_of(out))
    if unmeasured := [item.index for item in items if item.index not in measured]:
        raise DamagedFileError(
            f"{out / CONSISTENCY_FILE} is damaged: it has no line for the items {unmeasured[:5]}. Delete the file "
            "to redo it."
        )
    return tuple(_record(item, answers.get(item.index, ()), measured[item.index]) for item in items)


def has_records(folder: Path) -> bool:
    """Tells whether ``read_records`` finds everything about every item."""
    try:
        read_records(folder)
    except (FileNotFoundError, DamagedFileError):
        return False
    return True


def reading_of(out: Path) -> Reading:
    """Returns how annotations were read for the measurements in ``out``."""
    rows = measured_rows(out)
    return MeasuringRules(str(rows[0]["rules"])).reading if rows else Reading.STRICT


def measured_rows(out: Path) -> list[dict[str, object]]:
    """Returns the lines of ``consistency.jsonl``, none if nothing is measured."""
    path = out / CONSISTENCY_FILE
    return read_json_lines(path, MEASURED_KEYS) if path.exists() else []


@dataclass(frozen=True, slots=True)
class _Measuring:
    folder: Path
    rules: MeasuringRules
    known: Mapping[tuple[object, ...], dict[str, object]]
    altered: frozenset[str]
    original_of: Callable[[EditedItem], Tensor | None] | None

    def row(self, item: EditedItem) -> dict[str, object]:
        """The line about an item, measured if need be. Threads may call it."""
        source, edited = self.folder / item.input_path, self.folder / _psnr_output(item)
        identity = {
            "index": item.index,
            "rules": self.rules.value,
            "measured_by": _settings_digest(item, self.rules, has_original=self.original_of is not None),
            "input_sha256": _digest(source),
            "output_sha256": _digest(edited),
        }
        return self.known.get(_known_by(identity)) or {
            **identity,
            "has_edit_area": bool(item.edit_area),
            **self._measured(item, source, edited),
        }

    def _measured(self, item: EditedItem, source: Path, edited: Path) -> dict[str, object]:
        measured = dict(_UNMEASURED)
        judged = self.folder / item.output_path
        pictures = [self._opened(path, key, measured) for key, path in (("input", source), ("output", edited))]
        if judged == edited:
            measured["judged_size"] = measured["output_size"]
        else:
            self._opened(judged, "judged", measured)
        first, second = pictures
        if first is None or second is None:
            return measured
        measured["input_format"] = _format(source)
        if item.output_path in self.altered or item.input_path in self.altered:
            return measured | {"fault": "a picture was altered after editing: its hash is not the manifest's"}
        if item.official is not None and item.official.area_fault is not None:
            return measured | {"fault": item.official.area_fault}
        return measured | self._psnr(item, first, second)

    def _opened(self, path: Path, key: str, measured: dict[str, object]) -> Tensor | None:
        """The picture, with its size noted, or None with the fault noted."""
        try:
            picture = read_as_official(path) if self.rules is MeasuringRules.OFFICIAL else read_rgb(path)
        except ValueError as error:
            measured["fault"] = measured["fault"] or str(error)
            return None
        measured[f"{key}_size"] = [picture.shape[-1], picture.shape[-2]]
        return picture

    def _psnr(self, item: EditedItem, source: Tensor, edited: Tensor) -> dict[str, object]:
        scale = max(source.shape[-2:]) / _FRAME_LONG_SIDE_PX if self.rules is MeasuringRules.STRICT else 1.0
        area = [Box(box.x * scale, box.y * scale, box.width * scale, box.height * scale) for box in item.edit_area]
        value = psnr_outside(source, edited, area)
        original = None if self.original_of is None else self.original_of(item)
        return {
            "psnr_db": value,
            "psnr_512_db": psnr_in_square(source, edited, area),
            "fault": _undefined(area) if value is None else None,
            "was_resized": source.shape != edited.shape,
            "area_scale": scale if area else 1.0,
            "input_to_original_db": None if original is None else psnr_outside(original, source, ()),
        }


def _psnr_output(item: EditedItem) -> str:
    return item.output_path if item.official is None else item.official.psnr_output


def _known_by(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[key] for key in _KNOWN_BY)


def _settings_digest(item: EditedItem, rules: MeasuringRules, *, has_original: bool) -> str:
    fault = None if item.official is None else item.official.area_fault
    decisive = {"rules": rules.value, "area": repr(item.edit_area), "fault": fault, "has_original": has_original}
    return digest_of(decisive)[:16]


def _undefined(area: Sequence[Box]) -> str:
    has_negative_side = any(box.width < 0 or box.height < 0 for box in area)
    return "a rectangle of the edit area has a negative side" if has_negative_side else "the edit area covers it all"


def _digest(path: Path) -> str | None:
    return file_digest(path) if path.is_file() else None


def _format(path: Path) -> str | None:
    with Image.open(path) as image:
        return image.format


def _merge(out: Path, world_size: int, items: Sequence[EditedItem]) -> None:
    parts = [out / f"consistency.{rank}.jsonl" for rank in range(world_size)]
    order = {item.index: place for place, item in enumerate(items)}
    rows = [row for part in parts for row in read_json_lines(part)]
    write_json_lines(out / CONSISTENCY_FILE, sorted(rows, key=lambda row: order[_index(row)]))
    for part in parts:
        part.unlink()


def _index(row: Mapping[str, object]) -> int:
    index = row["index"]
    assert isinstance(index, int)
    return index


def _answer(row: dict[str, object]) -> Answer:
    correct, kind, number = row["correct"], row["kind"], row["number"]
    assert isinstance(number, int)
    return Answer(
        number=number,
        question=str(row["question"]),
        reference=str(row["reference"]),
        kind=None if kind is None else str(kind),
        verdict=str(row["verdict"]),
        correct=None if correct is None else bool(correct),
        raw=str(row["raw"]),
        explanation=str(row["explanation"]),
    )


def _record(item: EditedItem, answers: Sequence[Answer], measured: Mapping[str, object]) -> ItemRecord:
    return ItemRecord(
        index=item.index,
        category=item.category,
        law=item.law,
        operation=item.operation,
        level=item.level,
        answers=tuple(sorted(answers, key=lambda answer: answer.number)),
        psnr_db=_decibels(measured["psnr_db"]),
        psnr_512_db=_decibels(measured["psnr_512_db"]),
        has_edit_area=bool(item.edit_area),
    )


def _decibels(value: object) -> float | None:
    assert value is None or isinstance(value, float | int)
    return None if value is None else float(value)
