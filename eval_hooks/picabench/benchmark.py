"""The items of PICABench, and of other benchmarks in its published schemas."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from physedit.data_loaders.images import decode_rgb
from physedit.data_loaders.sample import Box, DatasetLayoutError, DatasetRowError, Origin, PromptLevel
from physedit.data_loaders.tables import parquet_columns, read_parquet_rows
from physedit.eval_hooks.files import digest_of, file_digest
from physedit.eval_hooks.picabench.annotations import Question, parse_edit_area, parse_questions
from physedit.eval_hooks.picabench.benchmark_rows import (
    BOXED_QUESTIONS,
    EDIT_AREA,
    INSTRUCTION,
    LABELS,
    LEVEL,
    PLAIN_QUESTIONS,
    PROMPT_COLUMNS,
    REMEDY,
    TARGETS_FILE,
    BenchmarkRow,
    benchmark_files,
    picture_bytes,
    picture_files,
    read_rows,
)

_NUM_JOINED = 16
"""Digests of more files are hashed once more."""


@dataclass(frozen=True, slots=True)
class BenchmarkItem:
    """One picture to edit and the questions about the result.

    Attributes:
        index: row number over all files, or the index of ``meta_info.json``, which names the item's pictures.
        encoded: the stored bytes of the source picture.
        category, law, operation: PICABench's labels, as the file spells them.
        prompts: the instruction at each level; may be blank where the benchmark has none.
        questions: what the judge is asked about the edited picture.
        edit_area: rectangles as the benchmark has them; empty if the edit may be anywhere.
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

    Args:
        path: a parquet file, an official ``meta_info.json``, or a folder with either.

    Raises:
        DatasetLayoutError: no such files, or columns are missing.
        DatasetRowError: a row's questions, edit area or picture cannot be understood.
    """
    path = Path(path)
    targets = _load_targets(benchmark_files(path)[0].parent / TARGETS_FILE)
    items = tuple(_parse_item(row, row.encoded(), targets.get(row.index)) for row in read_rows(path))
    if not items:
        raise DatasetLayoutError(f"PICABench: {path} has no rows. {REMEDY}")
    return items


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
    num_items = 0
    for row in read_rows(Path(path), with_pictures=False):
        item = _parse_item(row, b"", None)
        item.instruction(level)
        for question in item.questions:
            _refuse_unknown(question, item.origin, kind_of)
        num_items += 1
    if not num_items:
        raise DatasetLayoutError(f"PICABench: {path} has no rows. {REMEDY}")
    return num_items


def benchmark_digest(path: str | Path) -> str:
    """Returns the SHA-256 over the contents of a benchmark's files, joined in order; of its pictures too."""
    path = Path(path)
    files = (*benchmark_files(path), *picture_files(path))
    digests = [file_digest(file) for file in files]
    return "-".join(digests) if len(digests) <= _NUM_JOINED else digest_of({"files": digests})


def _refuse_unknown(question: Question, origin: Origin, kind_of: Callable[[str], str | None]) -> None:
    try:
        kind_of(question.text)
    except ValueError as error:
        raise DatasetLayoutError(
            f"{origin} asks {question.text!r}, which the measures of this evaluation do not know: {error}. Choose "
            "measures made for this benchmark; measures: null stands for PICABench's own, which take any question."
        ) from error


def _parse_item(row: BenchmarkRow, encoded: bytes, target: bytes | None) -> BenchmarkItem:
    category, law, operation = (_text(row, name) or "unknown" for name in LABELS)
    boxed = row.values.get(BOXED_QUESTIONS)
    return BenchmarkItem(
        index=row.index,
        encoded=encoded,
        category=category,
        law=law,
        operation=operation,
        prompts=_prompts(row),
        questions=parse_questions(row.values.get(PLAIN_QUESTIONS) if boxed is None else boxed, row.origin),
        edit_area=parse_edit_area(row.values.get(EDIT_AREA), row.origin),
        origin=row.origin,
        target=target,
    )


def _prompts(row: BenchmarkRow) -> dict[PromptLevel, str]:
    """Returns the instruction of each level; ``edit_instruction`` is that of the row's level, or superficial."""
    prompts = {level: _text(row, column) for level, column in PROMPT_COLUMNS.items()}
    written = _text(row, LEVEL)
    level = PromptLevel(written) if written in tuple(PromptLevel) else PromptLevel.SUPERFICIAL
    if not prompts[level].strip():
        prompts[level] = _text(row, INSTRUCTION)
    return prompts


def _text(row: BenchmarkRow, name: str) -> str:
    value = row.values.get(name)
    if value is not None and not isinstance(value, str):
        raise DatasetRowError(f"{row.origin}: {name} is a {type(value).__name__}; expected text. Correct the row.")
    return value or ""


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
    return {
        _index(row, file): picture_bytes(row["tgt_img"], Origin(str(file), n), "tgt_img") for n, row in enumerate(rows)
    }


def _index(row: Mapping[str, object], file: Path) -> int:
    index = row["index"]
    if not isinstance(index, int):
        raise DatasetLayoutError(f"{file}: column index holds {index!r}. Write it again or delete it.")
    return index
