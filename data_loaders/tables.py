"""Parquet files: finding them, their columns, and what is wrong with them."""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from physedit.data_loaders.sample import DatasetLayoutError

_DOWNLOAD_AGAIN = "Download or write it again."
_LET_IN = "Mend its permissions, or the disk that it lies on."
_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT})


def is_refusal(error: Exception) -> bool:
    """True if permission, disk or network refuse a file, whatever is in it."""
    return isinstance(error, OSError) and error.errno in _REFUSALS


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Names the setting where a file below ``path`` may not be read.

    Raises:
        DatasetLayoutError: permission, disk or network refuse it.
    """
    try:
        yield
    except OSError as error:
        if not is_refusal(error):
            raise
        raise DatasetLayoutError(
            f"data.path={path} cannot be used: {error.filename or path} cannot be read: {error.strerror}. {_LET_IN}"
        ) from error


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
        if is_refusal(error):
            raise DatasetLayoutError(f"{file} cannot be read: {reason}. {_LET_IN}") from error
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


def num_parquet_rows(file: Path) -> int:
    """Returns the number of rows, from the file's footer.

    Raises:
        DatasetLayoutError: the file is damaged.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(file).num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from error


def row_without_picture(file: Path, column: str) -> int | None:
    """Returns the first row of ``file`` whose picture has no bytes; None if all have some.

    The file's own statistics are asked, so that pictures are read only of row groups with an empty cell.

    Raises:
        DatasetLayoutError: the file is damaged.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            first = 0
            for group in range(table.num_row_groups):
                if _num_nulls(table.metadata.row_group(group), column) != 0:
                    cells = table.read_row_group(group, columns=[column]).column(column).to_pylist()
                    for number, cell in enumerate(cells):
                        if not (cell.get("bytes") if isinstance(cell, dict) else cell):
                            return first + number
                first += table.metadata.row_group(group).num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from error
    return None


def _num_nulls(group: Any, column: str) -> int | None:
    """Returns the empty cells of a picture column in a row group; None if its statistics do not tell."""
    for number in range(group.num_columns):
        leaf = group.column(number)
        if leaf.path_in_schema in (column, f"{column}.bytes"):
            known = leaf.statistics
            return int(known.null_count) if known is not None and known.has_null_count else None
    return None


def refuse_damage(file: Path, columns: Sequence[str]) -> None:
    """Reads the columns of a whole file.

    Raises:
        DatasetLayoutError: they cannot be read to their end.
    """
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
    if is_refusal(error):
        return DatasetLayoutError(f"{file} cannot be read: {reason}. {_LET_IN}")
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
