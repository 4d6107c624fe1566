"""Rows of Arrow tables, memory-mapped: parquet files, and data sets saved to disk."""

import bisect
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from physedit.data_loaders.arrow_batches import ArrowBatches
from physedit.data_loaders.rows import PictureFile, StoredPicture, digest, row_name, stamp
from physedit.data_loaders.sample import DatasetLayoutError, Origin
from physedit.data_loaders.tables import is_refusal, num_parquet_rows, parquet_columns, refuse_damage, require_columns

logger = logging.getLogger(__name__)

SAVED_MARK, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files by which a folder written by ``datasets.save_to_disk`` is known: one set, or several splits."""

_LARGE_GIB = 1.0
_PLACES_FORMAT = 1
"""Raised when what is kept beside the Arrow cache would be read otherwise."""
_DOWNLOAD_AGAIN = "Download or write it again."


@dataclass(frozen=True, slots=True)
class ArrowPicture:
    """A picture in a memory-mapped table; its pages are read when they are touched."""

    buffer: Any
    """A ``pyarrow.Buffer``; pyarrow ships no types."""

    def read(self) -> bytes:
        """Returns a copy of the bytes."""
        data: bytes = self.buffer.to_pybytes()
        return data

    def open(self) -> BinaryIO:
        """Returns a stream over the bytes, without a copy."""
        import pyarrow

        return cast(BinaryIO, pyarrow.BufferReader(self.buffer))


class ArrowRows:
    """Random access to the rows of a memory-mapped table. Picklable: a copy maps the same files."""

    def __init__(
        self,
        batches: ArrowBatches,
        files: Sequence[Path],
        counts: Sequence[int],
        *,
        texts: Sequence[str],
        pictures: Sequence[str],
    ) -> None:
        """Takes the batches of a ``datasets.Dataset``.

        Args:
            batches: in the order of ``files``.
            files: where the rows come from.
            counts: rows of each file.
            texts: text columns.
            pictures: picture columns: structs of ``bytes`` and ``path``.
        """
        self._batches = batches
        self._files = tuple(files)
        self._ends = list(itertools.accumulate(counts))
        self._texts = tuple(texts)
        self._pictures = tuple(pictures)

    def __len__(self) -> int:
        return len(self._batches)

    def row(self, index: int) -> Mapping[str, object]:
        """Returns the columns of row ``index``; no picture is copied."""
        names = (*self._texts, *self._pictures)
        cells = dict(zip(names, self._batches.cells(index, names), strict=True))
        row: dict[str, object] = {name: cells[name].as_py() for name in self._texts}
        return row | {name: self._picture(cells[name], index, name) for name in self._pictures}

    def picture(self, index: int, column: str) -> StoredPicture | None:
        """Returns the picture in one cell, if there is one."""
        (cell,) = self._batches.cells(index, (column,))
        return self._picture(cell, index, column)

    def _picture(self, cell: Any, index: int, column: str) -> StoredPicture | None:
        if not cell.is_valid:
            return None
        if cell["bytes"].is_valid:
            buffer = cell["bytes"].as_buffer()
            return ArrowPicture(buffer) if buffer.size else None
        path = cell["path"].as_py()
        if not path:
            return None
        origin = self.origin(index)
        return PictureFile(Path(origin.file).parent / path, f"Column '{column}' in {origin}")

    def texts(self, column: str) -> Sequence[object]:
        """Returns one text column of all rows."""
        return self._batches.values(column)

    def origin(self, index: int) -> Origin:
        """Returns the file of row ``index`` and its number in that file."""
        file = bisect.bisect_right(self._ends, index)
        return Origin(str(self._files[file]), index - (self._ends[file - 1] if file else 0))

    def name(self, index: int) -> str:
        """Returns the file's name and the row's number in it."""
        return row_name(self.origin(index))

    def fingerprint(self) -> str:
        """Names the files by name, size and time. Pictures that rows only name by path are not looked at."""
        return digest(["arrow", *map(stamp, self._files)])


def parquet_rows(
    files: Sequence[Path], *, texts: Sequence[str], pictures: Sequence[str], lacking: str = ""
) -> ArrowRows:
    """Returns the rows of parquet files, in their order.

    Parquet itself can only be read by whole row groups (about 100 pictures), so the rows go once through the Arrow
    cache of HF ``datasets`` and are memory-mapped from there: a row costs its own bytes. Ranks that open the same files
    wait for each other's conversion. Beside the cache stands where its batches are, so that what was converted opens
    without a look at the files.

    Args:
        files: all with the columns.
        texts: text columns.
        pictures: picture columns.
        lacking: what to do if a file lacks a column.

    Raises:
        DatasetLayoutError: no rows, a column that a file lacks, or a file that cannot be read to its end.
    """
    from datasets import config

    known = [str(file.absolute()) + stamp(file) for file in files]
    name = digest([f"{_PLACES_FORMAT}", *texts, "", *pictures, "", *known])
    place = Path(config.HF_DATASETS_CACHE) / "row_places" / f"{name}.arrow"
    kept = ArrowBatches.kept(place)
    if kept is not None:
        counts, batches = kept
        return ArrowRows(batches, files, counts, texts=texts, pictures=pictures)
    for file in files:
        require_columns(str(file), parquet_columns(file), (*texts, *pictures), remedy=lacking)
    counts = [num_parquet_rows(file) for file in files]
    batches = ArrowBatches.listed(_converted(files, counts, _features(texts, pictures)))
    batches.keep(place, counts)
    return ArrowRows(batches, files, counts, texts=texts, pictures=pictures)


def _converted(files: Sequence[Path], counts: Sequence[int], features: Any) -> list[Path]:
    """Returns the Arrow files in the cache that hold the rows of parquet files, converted if they are not there."""
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    _announce_conversion(files)
    filled = [str(file) for file, count in zip(files, counts, strict=True) if count]
    if not filled:
        raise DatasetLayoutError(f"{', '.join(map(str, files))}: the data set has no rows. {_DOWNLOAD_AGAIN}")
    try:
        with _without_bars():
            table = Dataset.from_parquet(filled, columns=list(features), features=features)
    except DatasetGenerationError as error:
        for file in files:
            refuse_damage(file, list(features))
        raise DatasetLayoutError(
            f"{', '.join(filled)}: the rows cannot be converted: {error.__cause__ or error}. {_DOWNLOAD_AGAIN}"
        ) from error
    return [Path(file["filename"]) for file in table.cache_files]


def saved_rows(folder: Path, *, texts: Sequence[str], pictures: Sequence[str]) -> ArrowRows:
    """Returns the rows of a data set that ``datasets`` saved to disk, memory-mapped where it lies.

    Raises:
        DatasetLayoutError: the folder holds several splits, cannot be loaded, or lacks a column.
    """
    from datasets import load_from_disk

    if (folder / SAVED_SPLITS).is_file():
        splits = sorted(entry.name for entry in folder.iterdir() if (entry / SAVED_MARK).is_file())
        raise DatasetLayoutError(
            f"{folder} holds the splits {', '.join(splits) or 'none'}. Name one with its folder, for example "
            f"{folder / (splits or ['train'])[0]}."
        )
    try:
        table = load_from_disk(str(folder), keep_in_memory=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if is_refusal(error):
            raise
        reason = f"{SAVED_MARK} or dataset_info.json lacks {error}" if isinstance(error, KeyError) else error
        raise DatasetLayoutError(f"{folder} is no data set that can be loaded: {reason}. {_DOWNLOAD_AGAIN}") from error
    if table.num_rows == 0:
        raise DatasetLayoutError(f"{folder}: the data set has no rows.")
    require_columns(str(folder), dict.fromkeys(table.column_names), (*texts, *pictures))
    _require_picture_features(table, folder, pictures)
    batches = ArrowBatches.listed([Path(file["filename"]) for file in table.cache_files])
    files = batches.paths or [folder / SAVED_MARK]
    return ArrowRows(batches, files, batches.counts or [0], texts=texts, pictures=pictures)


def _require_picture_features(table: Any, folder: Path, pictures: Sequence[str]) -> None:
    from datasets import Image

    for name in pictures:
        if not isinstance(table.features[name], Image):
            raise DatasetLayoutError(
                f"Column '{name}' of {folder} is {table.features[name]}, but a picture column is an Image feature. "
                "Cast it with cast_column(name, datasets.Image()) and save it again."
            )


def _features(texts: Sequence[str], pictures: Sequence[str]) -> Any:
    from datasets import Features, Image, Value

    return Features({name: Value("string") for name in texts} | {name: Image(decode=False) for name in pictures})


def _announce_conversion(files: Sequence[Path]) -> None:
    from datasets import config

    size_gib = sum(file.stat().st_size for file in files) / 2**30
    if size_gib >= _LARGE_GIB:
        logger.info(
            "Opening %d parquet file(s) of %.0f GiB. The first use writes about as much to the Arrow cache at %s; "
            "HF_DATASETS_CACHE moves it.",
            len(files),
            size_gib,
            config.HF_DATASETS_CACHE,
        )


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
