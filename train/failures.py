"""Evaluations that failed while training went on: marked in the run folder, so that no one takes them for missing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from physedit.eval_hooks.files import read_json, write_json

FAILURES_FILE = "failed_evaluations.json"


@dataclass(frozen=True, slots=True)
class EvalFailure:
    """A hook that failed at a step, with the first error that a rank told."""

    hook: str
    step: int
    error: str

    @property
    def title(self) -> str:
        """Names hook and step."""
        return f"{self.hook} at step {self.step}"


def write_failures(folder: Path, failures: Sequence[EvalFailure]) -> None:
    """Writes ``failed_evaluations.json``, or removes it where nothing failed. Rank 0 calls it."""
    path = folder / FAILURES_FILE
    if failures:
        write_json(path, {"failed": [asdict(failure) for failure in failures]})
    else:
        path.unlink(missing_ok=True)


def read_failures(folder: Path, last_step: int) -> list[EvalFailure]:
    """Returns the failures that an earlier start of this run has marked, of steps up to ``last_step``."""
    path = folder / FAILURES_FILE
    rows = read_json(path)["failed"] if path.exists() else []
    assert isinstance(rows, list)
    found = [EvalFailure(str(row["hook"]), int(row["step"]), str(row["error"])) for row in rows]
    return [failure for failure in found if failure.step <= last_step]
