"""MIRA400K: two frames of one video clip and one instruction.

The set of the PICABench paper (arXiv 2510.17681, section 4.2: the UniReal pipeline over MiraData videos) is not public
and its files are not described. The columns here follow the nearest that are: UniReal's pairs of frames (CVPR 2025),
and MiraData's clip ids, frame numbers and captions (arXiv 2407.06358).
"""

from typing import Literal

from physedit.data_loaders.layouts import open_pairs
from physedit.data_loaders.reader import PairReader
from physedit.data_loaders.rows import PairColumns
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.selection import FramesApart, Selection, Split

_CLIP_ID = "clip_id"
_FRAMES = ("source_frame", "target_frame")


class Mira400k(PairReader):
    """An ``EditDataset`` of frame pairs, in any layout that ``Pairs`` reads.

    Columns: ``source`` and ``target`` (pictures) and ``instruction``; ``caption``, ``clip_id``, ``source_frame`` and
    ``target_frame`` are needed only by the settings that use them. The one prompt level is ``superficial``: an
    instruction names the change, not its physics.
    """

    def __init__(
        self,
        *,
        path: str,
        text: Literal["instruction", "caption"] = "instruction",
        min_frames_apart: int = 0,
        folder: str | None = None,
        streaming: bool = False,
        split: Split = "all",
        heldout_share: float = 0.0,
        split_by: Literal["clip", "picture"] = "clip",
        limit: int | None = None,
        min_side_px: int = 1,
    ) -> None:
        """Opens the table under ``path``.

        Args:
            path: a folder, file or hub address, as for ``Pairs``.
            text: the column that instructs: UniReal trains most pairs on the video's caption.
            min_frames_apart: use pairs whose frame numbers differ by at least this; 0 for all. Frames that are near
                teach an editor to change nothing.
            folder: where the file names of a ``.csv`` or ``.jsonl`` table start; None for the table's folder.
            streaming: read parquet files where they lie instead of copying them; slow in a shuffled order.
            split: ``train`` or ``heldout`` of a split by hash, or ``all``.
            heldout_share: the part of the clips or pictures that is held out.
            split_by: ``clip`` keeps pairs of one clip on one side, by ``clip_id``; ``picture`` goes by the source's
                bytes.
            limit: use this many rows, evenly spaced; None for all.
            min_side_px: refuse rows with a smaller picture.

        Raises:
            DatasetLayoutError: no table there, no rows, or a column is missing.
            DatasetRowError: a table without a line that can be read.
            ValueError: no row left, or settings that make no sense.
        """
        group = _CLIP_ID if split != "all" and split_by == "clip" else None
        apart = FramesApart(*_FRAMES, min_frames_apart) if min_frames_apart else None
        others = (*(_FRAMES if apart else ()), *((group,) if group else ()))
        columns = PairColumns("source", "target", {PromptLevel.SUPERFICIAL: text}, None, None, others=others)
        selection = Selection(None, None, split, heldout_share, group, limit, apart)
        rows = open_pairs(path, columns, folder=folder, streaming=streaming)
        super().__init__(rows, columns, selection, min_side_px=min_side_px)
