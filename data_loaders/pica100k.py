"""PICA-100K: edit pairs from generated videos, with three levels of instruction.

Source: https://huggingface.co/datasets/Andrew613/PICA-100K, split ``train``, 105,085 rows sorted by law.
"""

from collections.abc import Sequence
from pathlib import Path

from physedit.data_loaders.hub import PREFIX
from physedit.data_loaders.layouts import open_hub_parquet, open_parquet, open_streamed
from physedit.data_loaders.reader import PairReader
from physedit.data_loaders.rows import PairColumns, Rows
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.selection import Selection, Split

_COLUMNS = PairColumns(
    source="src_img",
    target="tgt_img",
    instructions={level: f"{level.value}_prompt" for level in PromptLevel},
    law="law",
    operation="op",
)
_DOWNLOAD = "hf download Andrew613/PICA-100K --repo-type dataset --local-dir"
_LACKING = f"Download the set again with `{_DOWNLOAD} FOLDER`, or read other columns with the data option `pairs`."


class Pica100k(PairReader):
    """An ``EditDataset`` over parquet files with PICA-100K's seven columns."""

    def __init__(
        self,
        *,
        path: str,
        streaming: bool = False,
        laws: Sequence[str] | None = None,
        operations: Sequence[str] | None = None,
        split: Split = "all",
        heldout_share: float = 0.0,
        limit: int | None = None,
        min_side_px: int = 1,
    ) -> None:
        """Opens the parquet files under ``path``.

        Args:
            path: a folder with ``data/train-*.parquet`` or ``train-*.parquet``, one parquet file, or
                ``hf://datasets/OWNER/NAME@REVISION``, which is downloaded once.
            streaming: read the files where they lie, on the hub or here, instead of copying them; slow in a shuffled
                order.
            laws: use rows of these laws; None for all.
            operations: use rows of these operations; None for all.
            split: ``train`` or ``heldout`` of a split by the source picture's bytes, or ``all``.
            heldout_share: the part of the rows that is held out.
            limit: use this many rows, evenly spaced over all laws; None for all.
            min_side_px: refuse rows with a smaller picture.

        Raises:
            DatasetLayoutError: no files there, no rows, or a column of the seven is missing.
            ValueError: a law or operation that no row has, no row left, or settings that make no sense.
        """
        selection = Selection(laws, operations, split, heldout_share, None, limit)
        super().__init__(_open(path, streaming), _COLUMNS, selection, min_side_px=min_side_px)


def _open(path: str, streaming: bool) -> Rows:
    missing = f"Download it with: {_DOWNLOAD} {path}, or set data.path={PREFIX}Andrew613/PICA-100K@REVISION."
    if streaming:
        return open_streamed(path, _COLUMNS, remedy=missing)
    local = open_hub_parquet(path) if path.startswith(PREFIX) else Path(path).expanduser()
    return open_parquet(local, _COLUMNS, missing=missing, lacking=_LACKING)
