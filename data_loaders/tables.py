"""Rows of parquet files, memory-mapped, each with its origin."""

import bisect
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from physedit.data_loaders.sample import DatasetLayoutError, Origin

logger = logging.getLogger(__name__)
_LARGE_GIB = 1.0

_DOWNLOAD_AGAIN = "Download or write it again."


class ParquetRows:
    """Random access to the rows of parquet files, in the order of ``files``.

    Parquet itself can only be read by whole row groups (about 100 pictures), so the rows go once through the
    Arrow cache of HF ``datasets`` and are memory-mapped from there: a row costs its own bytes. Picklable; ranks
    that open the same files wait for each other's conversion.
    """

    def __init__(self, files: Sequence[Path], *, texts: Sequence[str], pictures: Sequence[str]) -> None:
        """Opens the columns ``texts`` and ``pictures``; the caller has checked that all files have them.

        Raises:
            DatasetLayoutError: no rows, or a file that cannot be read to its end.
        """
        from datasets import Dataset, Features, Image, Value, config
        from datasets.exceptions import DatasetGenerationError

        size_gib = sum(file.stat().st_size for file in files) / 2**30
        if size_gib >= _LARGE_GIB:
            logger.info(
                "Opening %d parquet file(s) of %.0f GiB. The first use writes about as much to the Arrow cache at %s; "
                "HF_DATASETS_CACHE moves it.",
                len(files),
                size_gib,
                config.HF_DATASETS_CACHE,
            )
        features = {name: Value("string") for name in texts} | {name: Image(decode=False) for name in pictures}
        self._files = tuple(files)
        counts = [_num_rows(file) for file in files]
        self._ends = list(itertools.accumulate(counts))
        filled = [str(file) for file, count in zip(files, counts, strict=True) if count]
        if not filled:
            raise DatasetLayoutError(f"{', '.join(map(str, files))}: the data set has no rows. {_DOWNLOAD_AGAIN}")
        try:
            with _without_bars():
                self._rows = Dataset.from_parquet(filled, columns=list(features), features=Features(features))
        except DatasetGenerationError as error:
            for file in files:
                _refuse_damage(file, list(features))
            raise DatasetLayoutError(
                f"{', '.join(filled)}: the rows cannot be converted: {error.__cause__ or error}. {_DOWNLOAD_AGAIN}"
            ) from error

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``; a picture is a mapping with ``bytes`` and ``path``."""
        row: Mapping[str, object] = self._rows[index]
        return row

    def texts(self, column: str) -> Sequence[object]:
        """Returns one column of all rows; meant for text."""
        values: Sequence[object] = self._rows.data.column(column).to_pylist()
        return values

    def origin(self, index: int) -> Origin:
        """Returns the file of row ``index`` and its number in that file."""
        file = bisect.bisect_right(self._ends, index)
        return Origin(str(self._files[file]), index - (self._ends[file - 1] if file else 0))


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keeps the bar of the conversion out of logs."""
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def parquet_columns(file: Path) -> Mapping[str, str]:
    """Returns the columns of ``file`` and their Arrow types.

    Raises:
        DatasetLayoutError: the file is no parquet file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        reason = " ".join(str(error).split())
        raise DatasetLayoutError(f"{file} is no readable parquet file: {reason}. Download it again.") from error
    return {field.name: str(field.type) for field in schema}


def read_parquet_rows(file: Path, columns: Sequence[str]) -> list[dict[str, object]]:
    """Returns the named columns of all rows of ``file``, held in memory.

    Raises:
        DatasetLayoutError: the file cannot be read to its end.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        rows: list[dict[str, object]] = parquet.read_table(file, columns=list(columns)).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    return rows


def _num_rows(file: Path) -> int:
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from error


def _refuse_damage(file: Path, columns: Sequence[str]) -> None:
    """Raises for a file that cannot be read to its end."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            for _ in table.iter_batches(columns=list(columns)):
                pass
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> DatasetLayoutError:
    reason = " ".join(str(error).split())
    return DatasetLayoutError(f"{file} is damaged: {reason}. {_DOWNLOAD_AGAIN}")


def find_parquet_files(path: Path, *, remedy: str) -> tuple[Path, ...]:
    """Returns ``path`` if it is a file, else its ``data/train-*.parquet`` or ``train-*.parquet`` by name.

    Raises:
        DatasetLayoutError: nothing there; the message ends with ``remedy``.
    """
    if path.is_file():
        return (path,)
    for folder in (path / "data", path):
        files = tuple(sorted(folder.glob("train-*.parquet")))
        if files:
            return files
    found = sorted(entry.name for entry in path.iterdir())[:8] if path.is_dir() else None
    state = f"it holds {', '.join(found) or 'nothing'}" if found is not None else "there is no such path"
    raise DatasetLayoutError(
        f"No parquet files under {path}: {state}. Expected {path}/data/train-*.parquet, "
        f"{path}/train-*.parquet, or one parquet file. {remedy}"
    )


def require_columns(where: str, found: Mapping[str, object], expected: Sequence[str], remedy: str = "") -> None:
    """Makes sure that ``found`` has every expected name.

    Raises:
        DatasetLayoutError: names what is expected, found, missing and near, and ends with ``remedy``.
    """
    missing = [name for name in expected if name not in found]
    if not missing:
        return
    hints = [
        f"'{name}' is missing, did you mean '{near[0]}'?"
        for name in missing
        if (near := get_close_matches(name, found, n=1))
    ]
    raise DatasetLayoutError(
        f"{where} lacks the columns {', '.join(missing)}. Expected {', '.join(expected)}; found "
        f"{', '.join(found)}. {' '.join(hints)} {remedy}".strip()
    )
