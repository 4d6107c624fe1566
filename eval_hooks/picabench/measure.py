"""Measuring the pictures of a folder, and reading everything that is known about them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from physedit.data_loaders.images import read_rgb
from physedit.eval_hooks.files import DamagedFileError, file_digest, read_json_lines, write_json_lines
from physedit.eval_hooks.metrics.consistency import psnr_outside
from physedit.eval_hooks.metrics.metric import Answer, ItemRecord
from physedit.eval_hooks.picabench.folder import EditedItem, read_manifest, read_meta_info, verify_outputs
from physedit.eval_hooks.picabench.judging import ANSWER_KEYS, ITEMS_FILE
from physedit.eval_hooks.ranks import Ranks

CONSISTENCY_FILE = "consistency.jsonl"
MEASURED_KEYS = ("index", "psnr_db", "was_resized", "input_sha256", "output_sha256")


def measure_folder(folder: Path, ranks: Ranks | None = None) -> None:
    """Writes ``consistency.jsonl``, a line for every picture; every rank must call it.

    Pictures whose measured bytes are still the same are not measured again.
    """
    ranks = ranks or Ranks()
    known = {(row["index"], row["input_sha256"], row["output_sha256"]): row for row in _rows_if_any(folder)}

    def measure() -> None:
        manifest = read_manifest(folder)
        altered = verify_outputs(folder, manifest) if manifest else frozenset()
        rows = [_measure(folder, item, known, altered) for item in ranks.share(read_meta_info(folder))]
        write_json_lines(folder / f"consistency.{ranks.rank}.jsonl", rows)

    ranks.together(folder, measure)
    ranks.first_alone(folder, lambda: _merge(folder, ranks.world_size))


def read_records(folder: Path) -> tuple[ItemRecord, ...]:
    """Returns what judge and measurement found on every item of the folder, in its order.

    Raises:
        DamagedFileError: a line lacks a key, or an item has no measurement.
    """
    answers: dict[object, list[Answer]] = {}
    for row in read_json_lines(folder / ITEMS_FILE, (*ANSWER_KEYS, "index", "number", "reference", "kind", "correct")):
        answers.setdefault(row["index"], []).append(_answer(row))
    psnr = {row["index"]: row["psnr_db"] for row in _rows_if_any(folder)}
    items = read_meta_info(folder)
    if unmeasured := [item.index for item in items if item.index not in psnr]:
        raise DamagedFileError(
            f"{folder / CONSISTENCY_FILE} is damaged: it has no line for the items {unmeasured[:5]}. Delete the file "
            "to redo it."
        )
    return tuple(_record(item, answers.get(item.index, ()), psnr[item.index]) for item in items)


def has_records(folder: Path) -> bool:
    """Tells whether ``read_records`` finds everything about every item."""
    try:
        read_records(folder)
    except (FileNotFoundError, DamagedFileError):
        return False
    return True


def count_resized(folder: Path) -> int:
    """Returns how many edited pictures had another size than their input and were scaled for the PSNR."""
    return sum(bool(row["was_resized"]) for row in _rows_if_any(folder))


def _rows_if_any(folder: Path) -> list[dict[str, object]]:
    path = folder / CONSISTENCY_FILE
    return read_json_lines(path, MEASURED_KEYS) if path.exists() else []


_Known = Mapping[tuple[object, object, object], dict[str, object]]


def _measure(folder: Path, item: EditedItem, known: _Known, altered: frozenset[str]) -> dict[str, object]:
    paths = folder / item.input_path, folder / item.output_path
    input_digest, output_digest = (file_digest(path) if path.exists() else None for path in paths)
    row = known.get((item.index, input_digest, output_digest))
    if row is not None:
        return row
    measured: dict[str, object] = {"psnr_db": None, "was_resized": False, "fault": None}
    try:
        source, edited = (read_rgb(path) for path in paths)
    except ValueError as error:
        measured["fault"] = str(error)
    else:
        if item.output_path in altered or item.input_path in altered:
            measured["fault"] = "a picture was altered after editing: its hash is not the manifest's"
        else:
            measured["psnr_db"] = psnr_outside(source, edited, item.edit_area)
            measured["was_resized"] = source.shape != edited.shape
    return {
        "index": item.index,
        "has_edit_area": bool(item.edit_area),
        **measured,
        "input_sha256": input_digest,
        "output_sha256": output_digest,
    }


def _merge(folder: Path, world_size: int) -> None:
    parts = [folder / f"consistency.{rank}.jsonl" for rank in range(world_size)]
    order = {item.index: place for place, item in enumerate(read_meta_info(folder))}
    rows = [row for part in parts for row in read_json_lines(part)]
    write_json_lines(folder / CONSISTENCY_FILE, sorted(rows, key=lambda row: order[_index(row)]))
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


def _record(item: EditedItem, answers: Sequence[Answer], psnr_db: object) -> ItemRecord:
    assert psnr_db is None or isinstance(psnr_db, float | int)
    return ItemRecord(
        index=item.index,
        category=item.category,
        law=item.law,
        operation=item.operation,
        level=item.level,
        answers=tuple(sorted(answers, key=lambda answer: answer.number)),
        psnr_db=None if psnr_db is None else float(psnr_db),
        has_edit_area=bool(item.edit_area),
    )
