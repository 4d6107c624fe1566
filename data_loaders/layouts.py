"""Opens a table of edit pairs, whichever layout it has."""

from pathlib import Path

from physedit.data_loaders.arrow_rows import SAVED_MARK, SAVED_SPLITS, parquet_rows, saved_rows
from physedit.data_loaders.hub import PREFIX, download, parquet_addresses, parse_hub
from physedit.data_loaders.metadata_rows import METADATA_FILES, TABLE_ENDINGS, MetadataRows
from physedit.data_loaders.row_group_rows import RowGroupRows
from physedit.data_loaders.rows import PairColumns, Rows
from physedit.data_loaders.sample import DatasetLayoutError
from physedit.data_loaders.tables import find_parquet_files, opening
from physedit.data_loaders.tar_rows import TarRows

_PARQUET = ("data/train-*.parquet", "train-*.parquet")
_ALL_FILES = ("*",)
_LAYOUTS = (
    f"A folder may also hold {' or '.join(METADATA_FILES)}, *.tar shards, or a set saved by datasets.save_to_disk; a "
    f"table of another name is given by its file. A set on the hub is {PREFIX}OWNER/NAME@REVISION."
)


def open_pairs(path: str, columns: PairColumns, *, folder: str | None = None, streaming: bool = False) -> Rows:
    """Returns the rows of a table: parquet, a table beside picture files, a saved data set, tar shards, or a hub set.

    Args:
        path: folder, file or hub address.
        columns: which must be there.
        folder: where the file names of a ``.csv`` or ``.jsonl`` table start; None for the table's folder.
        streaming: parquet files are read where they lie instead of being copied.

    Raises:
        DatasetLayoutError: no table there, or a column is missing.
        DatasetRowError: a table without a line that can be read.
        ValueError: an argument that has no effect with this layout, or a hub address of another form.
    """
    if streaming:
        _refuse_unstreamed(path)
        return open_streamed(path, columns, remedy=_LAYOUTS)
    local = download(parse_hub(path), _ALL_FILES) if path.startswith(PREFIX) else Path(path).expanduser()
    with opening(local):
        return _open_local(local, path, columns, folder)


def _open_local(local: Path, path: str, columns: PairColumns, folder: str | None) -> Rows:
    table = _table_file(local)
    if table is not None:
        start = None if folder is None else _existing_folder(folder)
        return MetadataRows(table, texts=columns.texts, pictures=columns.pictures, folder=start)
    if folder is not None:
        raise ValueError(f"data.folder={folder} has no effect: {path} is no table of file names (.csv or .jsonl).")
    if (local / SAVED_MARK).is_file() or (local / SAVED_SPLITS).is_file():
        return saved_rows(local, texts=columns.texts, pictures=columns.pictures)
    shards = (local,) if local.suffix == ".tar" and local.is_file() else tuple(sorted(local.glob("*.tar")))
    if shards:
        return TarRows(shards, texts=columns.texts, pictures=columns.pictures)
    return open_parquet(local, columns, missing=_LAYOUTS)


def open_parquet(path: Path, columns: PairColumns, *, missing: str, lacking: str = "") -> Rows:
    """Returns the rows of local parquet files.

    Args:
        path: a folder with ``data/train-*.parquet`` or ``train-*.parquet``, or one file.
        columns: which every file must have.
        missing: what to do if there are no files.
        lacking: what to do if one lacks a column.

    Raises:
        DatasetLayoutError: no files there, no rows, or a column is missing.
    """
    with opening(path):
        files = find_parquet_files(path, remedy=missing)
        return parquet_rows(files, texts=columns.texts, pictures=columns.pictures, lacking=lacking)


def open_streamed(path: str, columns: PairColumns, *, remedy: str) -> Rows:
    """Returns the rows of parquet files, local or on the hub, read where they lie.

    Raises:
        DatasetLayoutError: no parquet files there, no rows, or a column is missing.
    """
    if path.startswith(PREFIX):
        addresses = parquet_addresses(parse_hub(path))
    else:
        local = Path(path).expanduser()
        with opening(local):
            addresses = tuple(str(file.absolute()) for file in find_parquet_files(local, remedy=remedy))
    return RowGroupRows(addresses, texts=columns.texts, pictures=columns.pictures)


def open_hub_parquet(path: str) -> Path:
    """Returns the local folder of a hub set's parquet files, downloaded once.

    Raises:
        DatasetLayoutError: it cannot be downloaded.
        ValueError: a hub address of another form.
    """
    return download(parse_hub(path), _PARQUET)


def _refuse_unstreamed(path: str) -> None:
    """Refuses to stream what is no parquet, where a set of another layout lies."""
    local = Path(path).expanduser()
    if path.startswith(PREFIX):
        return
    with opening(local):
        table = _table_file(local)
        marks = [local / name for name in (SAVED_MARK, SAVED_SPLITS) if (local / name).is_file()]
        found = next(iter([*([table] if table else []), *marks, *sorted(local.glob("*.tar"))]), None)
    if found is not None:
        raise ValueError(
            f"data.streaming=true reads parquet files, but data.path={path} holds {found.name}, which is read where it "
            "lies anyway. Leave data.streaming out."
        )


def _table_file(path: Path) -> Path | None:
    if path.is_file():
        return path if path.suffix in TABLE_ENDINGS else None
    return next((path / name for name in METADATA_FILES if (path / name).is_file()), None)


def _existing_folder(folder: str) -> Path:
    found = Path(folder).expanduser()
    if not found.is_dir():
        raise DatasetLayoutError(f"data.folder={folder} is no folder. Name the one that holds the picture files.")
    return found
