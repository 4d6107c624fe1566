"""Rows that a run cannot use: each is named once, and too many stop the run."""

import logging
from collections.abc import Sequence
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from physedit.data_loaders.sample import DatasetRowError, DroppedRow
from physedit.eval_hooks.files import read_steps, write_json_lines
from physedit.train.record_lines import add_line

logger = logging.getLogger(__name__)

NUM_WARNINGS = 10
"""Ours: so many rows are named in the log, all of them in the file."""
_NUM_NAMED = 5
_REMEDY = "Mend or remove what is wrong, or delete the file: the run then counts the rows that it drops from here on."


class TooManyDropped(DatasetRowError):
    """More rows than ``max_dropped_share`` allows cannot be used, or none can."""


class DroppedRows:
    """The rows that a run has dropped so far: the same on every rank, and in ``dropped.jsonl`` by rank 0."""

    def __init__(self, num_rows: int, max_share: float) -> None:
        """Begins with none.

        Args:
            num_rows: of the data set.
            max_share: of its rows that may be dropped.
        """
        self._num_rows = num_rows
        self._max_share = max_share
        self._names: list[str] = []
        self._known: set[str] = set()
        self._file: Path | None = None

    def __len__(self) -> int:
        return len(self._known)

    def start(self, path: Path, step: int, accelerator: Accelerator) -> None:
        """Takes over the rows that a run resumed at ``step`` has dropped up to there; all ranks call it.

        Args:
            path: ``dropped.jsonl``, which rank 0 writes; its lines of later steps, which come again, go.
            step: where the run goes on; 0 is a new run, which has dropped none.
            accelerator: the run's processes.

        Raises:
            DamagedFileError: on rank 0, the file cannot be read back.
        """
        known: list[list[str]] = [[]]
        if accelerator.is_main_process:
            lines = read_steps(path, ("sample_id",), remedy=_REMEDY) if path.exists() and step else []
            kept = [line for line in lines if int(str(line["step"])) <= step]
            write_json_lines(path, kept)
            known = [[str(line["sample_id"]) for line in kept]]
            self._file = path
        if accelerator.num_processes > 1:
            broadcast_object_list(known, from_process=0)
        self._names = known[0]
        self._known = set(self._names)

    def add(self, found: Sequence[tuple[int, DroppedRow]]) -> None:
        """Records rows with the step that met them; one that is known already is passed over.

        Every rank calls it with the rows of all ranks.

        Raises:
            TooManyDropped: more rows than allowed are dropped, or all; the message names the first.
            RecordNotWritten: on rank 0, the disk is full or not writable.
        """
        for step, row in sorted(found, key=lambda each: (each[0], each[1].index)):
            if row.name.sample_id not in self._known:
                self._known.add(row.name.sample_id)
                self._names.append(row.name.sample_id)
                self._record(step, row)
        if self._num_rows and len(self._known) >= self._num_rows:
            raise TooManyDropped(
                f"All {self._num_rows} rows are dropped, so there is nothing to learn from: "
                f"{', '.join(self._names[:_NUM_NAMED])}{', ...' if len(self._names) > _NUM_NAMED else ''}. "
                "dropped.jsonl in the run folder says why. Mend these rows."
            )
        if len(self._known) > self._max_share * self._num_rows:
            raise TooManyDropped(
                f"{len(self._known)} of {self._num_rows} rows cannot be used, more than "
                f"max_dropped_share={self._max_share} allows: {', '.join(self._names[:_NUM_NAMED])}"
                f"{', ...' if len(self._names) > _NUM_NAMED else ''}. dropped.jsonl in the run folder says why. "
                f"Mend or remove these rows, or raise max_dropped_share."
            )

    def _record(self, step: int, row: DroppedRow) -> None:
        if self._file is None:
            return
        line = {
            "step": step,
            "sample_id": row.name.sample_id,
            "file": row.name.origin.file,
            "row": row.name.origin.row,
            "reason": row.reason,
            "message": row.message,
        }
        add_line(self._file, line, f"the row {row.name.sample_id} that step {step} drops")
        if len(self._names) <= NUM_WARNINGS:
            logger.warning("Row %s is dropped: %s", row.name.sample_id, row.message)
        if len(self._names) == NUM_WARNINGS:
            logger.warning("Further dropped rows are named in %s alone.", self._file)
