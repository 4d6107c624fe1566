"""What wandb has of a run from its earlier starts, so that it is told of every step once.

A process that is killed leaves wandb without the last numbers that it was told, and with some of steps after the newest
checkpoint, which are done again. metrics.jsonl has them all, each once.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from physedit.train.config import ConfigError
from physedit.train.wandb_log import Row, read_log

logger = logging.getLogger(__name__)

STEP = "trainer/step"
"""The metric of wandb that holds the run's own step."""
_OF_THE_RUN = ("train/", "time/")
"""Numbers that a step has once, whatever they are; those of an evaluation are replaced by other ones."""


class Record:
    """Values by the run's own step and key, of earlier starts alone."""

    def __init__(self, rows: Iterable[Row]) -> None:
        """Takes the rows of the run's history, the oldest first."""
        self._values: dict[int, dict[str, object]] = {}
        for row in rows:
            if row.get(STEP) is not None:
                self.add(int(row[STEP]), row)

    def add(self, step: int, row: Row) -> None:
        """Notes what has been told of a step."""
        self._values.setdefault(step, {}).update(row)

    def has(self, step: int, metrics: Mapping[str, float]) -> bool:
        """True if wandb has these numbers of the step: of the run, in whatever value; of an evaluation, in this one."""
        known = self._values.get(step, {})
        return all(key in known and (key.startswith(_OF_THE_RUN) or known[key] == metrics[key]) for key in metrics)

    def has_key(self, step: int, key: str) -> bool:
        """True if wandb has pictures or a table of this key and step."""
        known = self._values.get(step, {})
        return key in known or f"{key}._type" in known  # a log tells of them in parts

    def forget(self, step: int, keys: Iterable[str]) -> None:
        """Forgets an evaluation, whose numbers are replaced: its pictures and its table are told again too."""
        hooks = {key.split("/")[0] for key in keys}
        known = self._values.get(step, {})
        self._values[step] = {key: value for key, value in known.items() if key.split("/")[0] not in hooks}


def offline_rows(folder: Path, run_id: str, current: Path) -> list[Row]:
    """Returns the rows of the run's logs that were made without a server, the oldest first.

    A log that holds nothing is put aside, because ``wandb sync`` stops at it.

    Args:
        folder: ``wandb/`` of the run.
        run_id: wandb's name of the run.
        current: the folder of the log that is being written.

    Raises:
        ConfigError: wandb cannot read one.
    """
    return _rows(folder, f"offline-run-*-{run_id}", current)


def online_rows(folder: Path, run_id: str, current: Path) -> list[Row]:
    """Returns the rows of the run's logs that were sent while they were written; otherwise as ``offline_rows``."""
    return _rows(folder, f"run-*-{run_id}", current)


def _rows(folder: Path, pattern: str, current: Path) -> list[Row]:
    rows: list[Row] = []
    for place in sorted(folder.glob(pattern)):
        for file in place.glob("*.wandb") if place.name != current.name else ():
            log = read_log(file)
            if log is None:
                place.rename(folder / f"empty-{place.name}")
            else:
                rows += log.rows
    return rows


def server_rows(path: str, timeout_s: float) -> list[Row]:
    """Returns the rows that a server has of the run ``ENTITY/PROJECT/ID``.

    Raises:
        ConfigError: it does not tell.
    """
    import wandb

    try:
        run = wandb.Api(timeout=max(1, int(timeout_s))).run(path)
        return list(run.scan_history(use_cache=False))
    except Exception as error:  # wandb raises its own errors, those of requests, and plain ones, by release
        raise ConfigError(f"wandb's server does not tell what it has of {path} ({error}).") from error
