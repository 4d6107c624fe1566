"""The rows of a benchmark, from parquet files or from an official ``meta_info.json``, before they are understood.

Source: github.com/Andrew0613/PICABench, prepare_meta_info.py (keys of ``meta_info.json``); the columns of
Andrew613/PICABench and PhysEdit/PhysEditBenchV2 on the hub.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError, Origin, PromptLevel
from physedit.data_loaders.tables import parquet_columns, read_parquet_rows, row_without_picture

META_INFO = "meta_info.json"
TARGETS_FILE = "targets.parquet"
PROMPT_COLUMNS: Mapping[PromptLevel, str] = {level: f"{level.value}_prompt" for level in PromptLevel}
INSTRUCTION = "edit_instruction"
LEVEL = "prompt_level"
LABELS = ("physics_category", "physics_law", "edit_operation")
BOXED_QUESTIONS, PLAIN_QUESTIONS = "annotated_qa_pairs", "qa_pairs"
EDIT_AREA = "edit_area"
PICTURE_COLUMNS = ("input_image", "input_img", "image", "source_image", "src_img", "original_image")
"""Names of the column of pictures; the first that a file has is taken."""
REMEDY = (
    "Point it at the folder of `hf download Andrew613/PICABench --repo-type dataset --local-dir FOLDER`, at an "
    "official meta_info.json, or at a benchmark written by `physedit scenes`."
)
_NEEDED = (*LABELS, "superficial_prompt", BOXED_QUESTIONS, "input_image")
_READ = (*LABELS, *PROMPT_COLUMNS.values(), INSTRUCTION, LEVEL, BOXED_QUESTIONS, PLAIN_QUESTIONS, EDIT_AREA)


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One row.

    Attributes:
        index: names the item's pictures; unique in its benchmark.
        values: by column or key, unknown ones left out.
        origin: file and row, for error messages.
        encoded: returns the stored bytes of the source picture.
    """

    index: int
    values: Mapping[str, object]
    origin: Origin
    encoded: Callable[[], bytes]


def benchmark_files(path: Path) -> tuple[Path, ...]:
    """Returns the parquet files of a benchmark in order, without its targets, or its one ``meta_info.json``.

    Raises:
        DatasetLayoutError: the path does not exist or holds neither.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise DatasetLayoutError(f"PICABench: {path} does not exist. {REMEDY}")
    files = tuple(f for f in sorted(path.rglob("*.parquet")) if f.name != TARGETS_FILE)
    if not files and (path / META_INFO).is_file():
        return (path / META_INFO,)
    if not files:
        found = ", ".join(sorted(f.name for f in path.iterdir())[:8]) or "nothing"
        raise DatasetLayoutError(f"PICABench: no parquet file and no {META_INFO} under {path}; found {found}. {REMEDY}")
    return files


def read_rows(path: Path, *, with_pictures: bool = True) -> Iterator[BenchmarkRow]:
    """Yields the rows of a benchmark in order.

    Args:
        path: a file, or a folder with files.
        with_pictures: False leaves the pictures of parquet files on the disk, but verifies that each row has one.

    Raises:
        DatasetLayoutError: no such files, one that cannot be read, or columns that are missing.
        DatasetRowError: a row without a picture.
    """
    files = benchmark_files(path)
    if files[0].suffix == ".json":
        yield from _rows_of_json(files[0])
        return
    index = 0
    for file in files:
        for row in _rows_of_parquet(file, index, with_pictures=with_pictures):
            yield row
            index += 1


def picture_files(path: Path) -> tuple[Path, ...]:
    """Returns the files that a benchmark's pictures lie in besides ``benchmark_files``: those of ``meta_info.json``."""
    files = benchmark_files(path)
    if files[0].suffix != ".json":
        return ()
    return tuple(_picture_path(record, files[0], row) for row, record in enumerate(_records(files[0])))


def picture_bytes(value: object, origin: Origin, column: str) -> bytes:
    """Returns the bytes of a cell of ``column``.

    Raises:
        DatasetRowError: it holds none.
    """
    encoded = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(encoded, bytes):
        raise DatasetRowError(
            f"{origin}: {column} holds no picture bytes (found {type(encoded).__name__}). "
            "The file was written without embedded pictures; download it again."
        )
    return encoded


def _rows_of_parquet(file: Path, first_index: int, *, with_pictures: bool) -> Iterator[BenchmarkRow]:
    found = parquet_columns(file)
    picture = _picture_column(file, found)
    if not with_pictures:
        bad_row = row_without_picture(file, picture)
        if bad_row is not None:
            picture_bytes(None, Origin(str(file), bad_row), picture)
    columns = [name for name in _READ if name in found] + ([picture] if with_pictures else [])
    for number, values in enumerate(read_parquet_rows(file, columns)):
        origin = Origin(str(file), number)
        encoded = picture_bytes(values.pop(picture), origin, picture) if with_pictures else b""
        yield BenchmarkRow(first_index + number, values, origin, lambda encoded=encoded: encoded)  # type: ignore[misc]


def _picture_column(file: Path, found: Mapping[str, str]) -> str:
    """Returns the column of pictures, once all that a benchmark needs is there."""
    picture = next((name for name in PICTURE_COLUMNS if name in found), None)
    missing = [name for name in LABELS if name not in found]
    if not any(name in found for name in (*PROMPT_COLUMNS.values(), INSTRUCTION)):
        missing.append("superficial_prompt")
    if BOXED_QUESTIONS not in found and PLAIN_QUESTIONS not in found:
        missing.append(BOXED_QUESTIONS)
    if picture is None:
        missing.append(PICTURE_COLUMNS[0])
    if missing or picture is None:
        raise DatasetLayoutError(
            f"PICABench: {file} lacks the columns {', '.join(missing)}. Found: {', '.join(found)}. "
            f"Expected: {', '.join(_NEEDED)} and, optionally, {EDIT_AREA} and the other prompts. {REMEDY}"
        )
    return picture


def _rows_of_json(file: Path) -> Iterator[BenchmarkRow]:
    records = _records(file)
    numbers = [record.get("index") for record in records]
    is_unique = all(type(number) is int for number in numbers) and len(set(numbers)) == len(numbers)
    for row, record in enumerate(records):
        picture = _picture_path(record, file, row)
        origin = Origin(str(file), row)
        index = numbers[row] if is_unique else row
        assert isinstance(index, int)
        yield BenchmarkRow(index, record, origin, lambda picture=picture: picture.read_bytes())  # type: ignore[misc]


def _records(file: Path) -> list[Mapping[str, object]]:
    try:
        records = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetLayoutError(f"PICABench: {file} cannot be read: {error}. {REMEDY}") from error
    if not isinstance(records, list) or not all(isinstance(record, Mapping) for record in records):
        raise DatasetLayoutError(f"PICABench: {file} is no list of items. {REMEDY}")
    return records


def _picture_path(record: Mapping[str, object], file: Path, row: int) -> Path:
    """Returns where an item's input lies; a first folder of the file's own folder's name is left out, as there.

    Source: PicaEval_gpt.py, which resolves outputs in this way.
    """
    named = record.get("input_path")
    if not isinstance(named, str) or not named:
        raise DatasetRowError(f"{Origin(str(file), row)}: input_path is {named!r}; expected the path of a picture.")
    path, base = Path(named), file.parent
    places = [base / path]
    if len(path.parts) > 1 and path.parts[0] == base.resolve().name:
        places.append(base.joinpath(*path.parts[1:]))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise DatasetRowError(
            f"{Origin(str(file), row)}: there is no picture {places[0]}. Put the pictures beside the file."
        )
    return found
