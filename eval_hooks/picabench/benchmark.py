"""The items of PICABench, read from parquet files of its published schema."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from physedit.data_loaders.images import decode_rgb
from physedit.data_loaders.sample import Box, DatasetLayoutError, DatasetRowError, Origin, PromptLevel
from physedit.data_loaders.tables import parquet_columns, read_parquet_rows, row_without_picture
from physedit.eval_hooks.files import file_digest
from physedit.eval_hooks.picabench.annotations import Question, parse_edit_area, parse_questions

PROMPT_COLUMNS: Mapping[PromptLevel, str] = {level: f"{level.value}_prompt" for level in PromptLevel}
_LABEL_COLUMNS = ("physics_category", "physics_law", "edit_operation")
_REQUIRED = (*_LABEL_COLUMNS, *PROMPT_COLUMNS.values(), "annotated_qa_pairs", "input_image")
_TARGETS_FILE = "targets.parquet"
_REMEDY = (
    "Point it at the folder of `hf download Andrew613/PICABench --repo-type dataset --local-dir FOLDER`, "
    "or at a benchmark written by `physedit scenes`."
)


@dataclass(frozen=True, slots=True)
class BenchmarkItem:
    """One picture to edit and the questions about the result.

    Attributes:
        index: row number over all files, which names the item's pictures.
        encoded: the stored bytes of the source picture.
        category, law, operation: PICABench's labels.
        prompts: the instruction at each level; may be blank where the benchmark has none.
        questions: what the judge is asked about the edited picture.
        edit_area: rectangles in the source picture's own pixels; empty if the edit may be anywhere.
        origin: file and row, for error messages.
        target: stored bytes of the picture that obeys the law, for contact sheets; no judge sees it.
    """

    index: int
    encoded: bytes
    category: str
    law: str
    operation: str
    prompts: Mapping[PromptLevel, str]
    questions: tuple[Question, ...]
    edit_area: tuple[Box, ...]
    origin: Origin
    target: bytes | None = None

    @property
    def source(self) -> Tensor:
        """The source picture as uint8 RGB ``[3, H, W]``, decoded anew each time."""
        return decode_rgb(self.encoded, self.origin)

    def instruction(self, level: PromptLevel) -> str:
        """Returns the instruction of ``level``.

        Raises:
            DatasetRowError: the item has none at that level.
        """
        text = self.prompts[level].strip()
        if not text:
            raise DatasetRowError(
                f"{self.origin} has no {level.value} instruction: column {PROMPT_COLUMNS[level]!r} is blank. "
                "Choose another level for this evaluation."
            )
        return text


def load_benchmark(path: str | Path) -> tuple[BenchmarkItem, ...]:
    """Returns the items of a benchmark file, or of all parquet files under a folder, in row order.

    Columns and keys beyond the schema are ignored. ``targets.parquet`` beside the files (columns ``index`` and
    ``tgt_img``) gives the items their target pictures.

    Raises:
        DatasetLayoutError: no such files, or columns are missing.
        DatasetRowError: a row's questions or edit area cannot be understood.
    """
    return _load(Path(path), (*_REQUIRED, "edit_area"))


def check_benchmark(path: str | Path, level: PromptLevel, kind_of: Callable[[str], str | None]) -> int:
    """Returns the number of items, having verified everything but the pictures, of which only that they are there.

    Args:
        path: as for ``load_benchmark``.
        level: every item must have an instruction of this level.
        kind_of: the measures' way to tell what a question is about; it must know every question.

    Raises:
        DatasetLayoutError: as ``load_benchmark``, or a question that ``kind_of`` refuses.
        DatasetRowError: as ``load_benchmark``, or an item has no instruction of ``level`` or no picture.
    """
    without_pictures = tuple(name for name in (*_REQUIRED, "edit_area") if name != "input_image")
    items = _load(Path(path), without_pictures)
    for item in items:
        item.instruction(level)
        for question in item.questions:
            _refuse_unknown(question, item.origin, kind_of)
    for file in benchmark_files(path):
        row = row_without_picture(file, "input_image")
        if row is not None:
            _picture_bytes(None, Origin(str(file), row))
    return len(items)


def benchmark_files(path: str | Path) -> tuple[Path, ...]:
    """Returns the parquet files of a benchmark in order, without its targets.

    Raises:
        DatasetLayoutError: the path does not exist or holds no parquet file.
    """
    path = Path(path)
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise DatasetLayoutError(f"PICABench: {path} does not exist. {_REMEDY}")
    files = tuple(f for f in sorted(path.rglob("*.parquet")) if f.name != _TARGETS_FILE)
    if not files:
        found = ", ".join(sorted(f.name for f in path.iterdir())[:8]) or "nothing"
        raise DatasetLayoutError(f"PICABench: no parquet file under {path}; found {found}. {_REMEDY}")
    return files


def benchmark_digest(path: str | Path) -> str:
    """Returns the SHA-256 over the contents of a benchmark's files, joined in order."""
    return "-".join(file_digest(file) for file in benchmark_files(path))


def spread(items: Sequence[BenchmarkItem], limit: int | None) -> tuple[BenchmarkItem, ...]:
    """Returns ``limit`` items spread evenly over the rows, which are grouped by law; all of them for None."""
    if limit is None or limit >= len(items):
        return tuple(items)
    return tuple(items[position * len(items) // limit] for position in range(limit))


def _refuse_unknown(question: Question, origin: Origin, kind_of: Callable[[str], str | None]) -> None:
    try:
        kind_of(question.text)
    except ValueError as error:
        raise DatasetLayoutError(
            f"{origin} asks {question.text!r}, which the measures of this evaluation do not know: {error}. Choose "
            "measures made for this benchmark; measures: null stands for PICABench's own, which take any question."
        ) from error


def _load(path: Path, columns: tuple[str, ...]) -> tuple[BenchmarkItem, ...]:
    files = benchmark_files(path)
    targets = _load_targets(files[0].parent / _TARGETS_FILE)
    items: list[BenchmarkItem] = []
    for file in files:
        for row_number, row in enumerate(_read_rows(file, columns)):
            index = len(items)
            items.append(_parse_item(row, index, Origin(str(file), row_number), targets.get(index)))
    if not items:
        raise DatasetLayoutError(f"PICABench: {path} has no rows. {_REMEDY}")
    return tuple(items)


def _read_rows(file: Path, columns: tuple[str, ...]) -> list[dict[str, object]]:
    found = parquet_columns(file)
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise DatasetLayoutError(
            f"PICABench: {file} lacks the columns {', '.join(missing)}. Found: {', '.join(found)}. "
            f"Expected: {', '.join(_REQUIRED)} and, optionally, edit_area. {_REMEDY}"
        )
    return read_parquet_rows(file, [name for name in columns if name in found])


def _parse_item(row: Mapping[str, object], index: int, origin: Origin, target: bytes | None) -> BenchmarkItem:
    category, law, operation = (str(row[name] or "unknown") for name in _LABEL_COLUMNS)
    return BenchmarkItem(
        index=index,
        encoded=_picture_bytes(row["input_image"], origin) if "input_image" in row else b"",
        category=category,
        law=law,
        operation=operation,
        prompts={level: str(row[column] or "") for level, column in PROMPT_COLUMNS.items()},
        questions=parse_questions(row["annotated_qa_pairs"], origin),
        edit_area=parse_edit_area(row.get("edit_area"), origin),
        origin=origin,
        target=target,
    )


def _picture_bytes(value: object, origin: Origin) -> bytes:
    encoded = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(encoded, bytes):
        raise DatasetRowError(
            f"{origin}: input_image holds no picture bytes (found {type(encoded).__name__}). "
            "The file was written without embedded pictures; download it again."
        )
    return encoded


def _load_targets(file: Path) -> dict[int, bytes]:
    if not file.exists():
        return {}
    found = parquet_columns(file)
    if not {"index", "tgt_img"} <= found.keys():
        raise DatasetLayoutError(
            f"{file}: expected the columns index and tgt_img, found {', '.join(found)}. Write it again or delete it; "
            "it only serves contact sheets."
        )
    rows = read_parquet_rows(file, ["index", "tgt_img"])
    return {_index(row, file): _picture_bytes(row["tgt_img"], Origin(str(file), n)) for n, row in enumerate(rows)}


def _index(row: Mapping[str, object], file: Path) -> int:
    index = row["index"]
    if not isinstance(index, int):
        raise DatasetLayoutError(f"{file}: column index holds {index!r}. Write it again or delete it.")
    return index
