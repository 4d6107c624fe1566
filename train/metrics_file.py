"""The run's own record of its numbers, which trackers are views of."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path

from physedit.eval_hooks.files import read_json_lines, write_json_lines
from physedit.train.record_lines import add_line


class MetricsFile:
    """``metrics.jsonl``: one JSON object a line with ``step``; keys below ``time/`` vary between equal runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rewind(self, step: int, repeated: Collection[str]) -> None:
        """Drops what a run resumed at ``step`` writes again.

        Args:
            step: where the run goes on; later lines go.
            repeated: names of the hooks that evaluate ``step`` again; their lines of that step go.
        """
        lines = read_json_lines(self._path) if self._path.exists() else []
        write_json_lines(self._path, [line for line in lines if not _is_repeated(line, step, repeated)])

    def append(self, step: int, metrics: Mapping[str, float | None] | Mapping[str, float]) -> None:
        """Adds a line.

        Raises:
            ValueError: a value is NaN or infinite.
            RecordNotWritten: the disk is full or not writable; the file is as it was.
        """
        _refuse_infinite(step, metrics)
        add_line(self._path, {"step": step, **metrics}, f"the numbers of step {step}")

    def has(self, step: int, hook: str, metrics: Mapping[str, float | None]) -> bool:
        """True if this evaluation's line is there, and no other one of that hook and step."""
        return self._of(step, hook)[1] == [{"step": step, **metrics}]

    def put(self, step: int, hook: str, metrics: Mapping[str, float | None]) -> None:
        """Adds an evaluation's line, in place of an earlier one of that hook and step.

        Raises:
            ValueError, OSError: as ``append``.
        """
        lines, earlier = self._of(step, hook)
        if earlier:
            _refuse_infinite(step, metrics)
            kept = [line for line in lines if line not in earlier]
            write_json_lines(self._path, [*kept, {"step": step, **metrics}])
        else:
            self.append(step, metrics)

    def _of(self, step: int, hook: str) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        """Returns all lines, and those of a hook and step."""
        lines = read_json_lines(self._path) if self._path.exists() else []
        return lines, [line for line in lines if line["step"] == step and any(_is_of(key, hook) for key in line)]


def _refuse_infinite(step: int, metrics: Mapping[str, float | None]) -> None:
    for key, value in metrics.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{key} is {value} at step {step}: metrics.jsonl holds finite numbers only.")


def _is_of(key: str, hook: str) -> bool:
    return key.split("/")[0] == hook


def _is_repeated(line: Mapping[str, object], step: int, repeated: Collection[str]) -> bool:
    at = int(str(line["step"]))
    return at > step or (at == step and any(_is_of(key, hook) for key in line for hook in repeated))
