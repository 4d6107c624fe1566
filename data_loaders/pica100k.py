"""PICA-100K: edit pairs from generated videos, with three levels of instruction.

Source: https://huggingface.co/datasets/Andrew613/PICA-100K, split ``train``, 105,085 rows sorted by law.
"""

from pathlib import Path

from physedit.data_loaders.reader import PairColumns, PairReader
from physedit.data_loaders.sample import EditSample, PromptLevel
from physedit.data_loaders.tables import ParquetRows, find_parquet_files, parquet_columns, require_columns

_COLUMNS = PairColumns(
    source="src_img",
    target="tgt_img",
    instructions={level: f"{level.value}_prompt" for level in PromptLevel},
    law="law",
    operation="op",
)
_TEXTS = (*_COLUMNS.instructions.values(), "law", "op")
_PICTURES = ("src_img", "tgt_img")
_DOWNLOAD = "hf download Andrew613/PICA-100K --repo-type dataset --local-dir"
_REMEDY = f"Download the set again with `{_DOWNLOAD} FOLDER`, or read other columns with the data option `pairs`."


class Pica100k:
    """An ``EditDataset`` over parquet files with PICA-100K's seven columns."""

    def __init__(self, *, path: str, limit: int | None = None) -> None:
        """Opens the parquet files under ``path``.

        Args:
            path: a folder with ``data/train-*.parquet`` or ``train-*.parquet``, or one parquet file.
            limit: use this many rows, evenly spaced over all laws; None for all.

        Raises:
            DatasetLayoutError: no files there, or a column of the seven is missing.
            DatasetRowError: an instruction is missing or blank.
            ValueError: no rows, or a limit that makes no sense.
        """
        files = find_parquet_files(Path(path).expanduser(), remedy=f"Download it with: {_DOWNLOAD} {path}")
        for file in files:
            require_columns(str(file), parquet_columns(file), (*_TEXTS, *_PICTURES), remedy=_REMEDY)
        rows = ParquetRows(files, texts=_TEXTS, pictures=_PICTURES)
        self._reader = PairReader(rows, _COLUMNS, limit=limit)

    @property
    def levels(self) -> frozenset[PromptLevel]:
        """All three levels."""
        return self._reader.levels

    @property
    def max_references(self) -> int:
        """None: the set has pairs."""
        return 0

    def __len__(self) -> int:
        return len(self._reader)

    def sample(self, index: int, level: PromptLevel) -> EditSample:
        """Returns the ``index``-th row in use with the instruction of ``level``.

        Raises:
            DatasetRowError: a picture is missing or cannot be decoded.
        """
        return self._reader.sample(index, level)
