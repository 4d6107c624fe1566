"""Edit pairs from any table whose columns the config names."""

from collections.abc import Sequence
from pathlib import Path

from physedit.data_loaders.metadata_rows import METADATA_FILES, MetadataRows
from physedit.data_loaders.reader import PairColumns, PairReader, Rows
from physedit.data_loaders.sample import EditSample, PromptLevel
from physedit.data_loaders.tables import ParquetRows, find_parquet_files, parquet_columns, require_columns


class Pairs:
    """An ``EditDataset`` over parquet files, or over a folder with ``metadata.csv`` or ``metadata.jsonl``."""

    def __init__(
        self,
        *,
        path: str,
        source: str,
        target: str,
        instruction: str,
        level: str,
        law: str | None = None,
        operation: str | None = None,
        references: Sequence[str] = (),
        limit: int | None = None,
    ) -> None:
        """Opens the table under ``path``. No column has a default: a swapped pair would train without a word.

        Args:
            path: a folder with a metadata file or ``train-*.parquet`` files, or one parquet file.
            source: column of the pictures before the edit.
            target: column of the pictures after it.
            instruction: column of the instructions.
            level: the prompt level that the instructions are written at.
            law: column of the physical law, or None.
            operation: column of the edit operation, or None.
            references: columns of further pictures that go to the editor beside the source; empty cells are none.
            limit: use this many rows, evenly spaced; None for all.

        Raises:
            DatasetLayoutError: no table there, or a column or picture file is missing.
            DatasetRowError: an instruction is missing or blank.
            ValueError: an unknown level, one column named twice, no rows, or a limit that makes no sense.
        """
        further = tuple(references)
        columns = PairColumns(source, target, {_known_level(level): instruction}, law, operation, further)
        texts = [name for name in (instruction, law, operation) if name is not None]
        pictures = [source, target, *further]
        _refuse_repeats([*pictures, *texts])
        rows = _open_rows(Path(path).expanduser(), texts=texts, pictures=pictures, optional=further)
        self._reader = PairReader(rows, columns, limit=limit)

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """The one level of the instructions."""
        return self._reader.levels

    @property
    def max_references(self) -> int:
        """The number of reference columns."""
        return self._reader.max_references

    def __len__(self) -> int:
        return len(self._reader)

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns the ``index``-th row in use.

        Raises:
            DatasetRowError: a picture is missing or cannot be decoded.
        """
        return self._reader.sample(index, level)


def _open_rows(path: Path, *, texts: Sequence[str], pictures: Sequence[str], optional: Sequence[str]) -> Rows:
    for name in METADATA_FILES:
        if (path / name).is_file():
            columns = [*texts, *pictures]
            return MetadataRows(path / name, columns=columns, pictures=pictures, optional=optional)
    files = find_parquet_files(path, remedy=f"A folder may also hold one of {', '.join(METADATA_FILES)}.")
    for file in files:
        require_columns(str(file), parquet_columns(file), [*texts, *pictures])
    return ParquetRows(files, texts=texts, pictures=pictures)


def _known_level(level: str) -> PromptLevel:
    try:
        return PromptLevel(level)
    except ValueError as error:
        raise ValueError(f"data.level is '{level}'; it must be one of {', '.join(PromptLevel)}.") from error


def _refuse_repeats(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"The columns {', '.join(repeated)} are named for two purposes. Name each once.")
