"""Edit pairs from any table whose columns the config names."""

from collections.abc import Sequence

from physedit.data_loaders.layouts import open_pairs
from physedit.data_loaders.reader import PairReader
from physedit.data_loaders.rows import PairColumns
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.selection import Selection, Split


class Pairs(PairReader):
    """An ``EditDataset`` over parquet, a table beside picture files, a saved data set, tar shards or a hub set."""

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
        folder: str | None = None,
        streaming: bool = False,
        laws: Sequence[str] | None = None,
        operations: Sequence[str] | None = None,
        split: Split = "all",
        heldout_share: float = 0.0,
        group: str | None = None,
        limit: int | None = None,
        min_side_px: int = 1,
    ) -> None:
        """Opens the table under ``path``. No column has a default: a swapped pair would train without a word.

        Args:
            path: a folder with a metadata file, ``train-*.parquet`` files, tar shards or a set saved to disk; one file
                of these kinds; or ``hf://datasets/OWNER/NAME@REVISION``, which is downloaded once.
            source: column of the pictures before the edit.
            target: column of the pictures after it.
            instruction: column of the instructions.
            level: the prompt level that the instructions are written at.
            law: column of the physical law, or None.
            operation: column of the edit operation, or None.
            references: columns of further pictures that go to the editor beside the source; empty cells are none.
            folder: where the file names of a ``.csv`` or ``.jsonl`` table start; None for the table's folder.
            streaming: read parquet files where they lie instead of copying them; slow in a shuffled order.
            laws: use rows of these laws; None for all.
            operations: use rows of these operations; None for all.
            split: ``train`` or ``heldout`` of a split by hash, or ``all``.
            heldout_share: the part of the rows that is held out.
            group: column whose equal values stay on one side of the split; None: the source picture's bytes decide.
            limit: use this many rows, evenly spaced; None for all.
            min_side_px: refuse rows with a smaller source or target.

        Raises:
            DatasetLayoutError: no table there, no rows, or a column is missing.
            DatasetRowError: a table without a line that can be read.
            ValueError: an unknown level, one column named twice, a law or operation that no row has, no row left, or
                settings that make no sense.
        """
        columns = PairColumns(
            source,
            target,
            {_known_level(level): instruction},
            law,
            operation,
            tuple(references),
            others=() if group is None else (group,),
        )
        _refuse_repeats([source, target, instruction, *references, *(each for each in (law, operation) if each)])
        selection = Selection(laws, operations, split, heldout_share, group, limit)
        rows = open_pairs(path, columns, folder=folder, streaming=streaming)
        super().__init__(rows, columns, selection, min_side_px=min_side_px)


def _known_level(level: str) -> PromptLevel:
    try:
        return PromptLevel(level)
    except ValueError as error:
        raise ValueError(f"data.level is '{level}'; it must be one of {', '.join(PromptLevel)}.") from error


def _refuse_repeats(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"The columns {', '.join(repeated)} are named for two purposes. Name each once.")
