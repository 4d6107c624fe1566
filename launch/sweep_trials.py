"""``trials.json``: what became of each trial of a sweep. It is the sweep's state, and what comparisons start from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from physedit.launch.local import write_files
from physedit.launch.plan import LaunchError
from physedit.launch.sweep_file import Metric, Parameters

TRIALS_FILE = "trials.json"


class TrialState(StrEnum):
    """Where a trial is."""

    RUNNING = "running"
    """Or it was, when the sweep was killed."""
    FINISHED = "finished"
    STOPPED_EARLY = "stopped_early"
    """By the rule of ``early_terminate``; it is not run again."""
    INTERRUPTED = "interrupted"
    """By a signal; it goes on when the sweep is started again."""
    FAILED = "failed"


DONE = frozenset({TrialState.FINISHED, TrialState.STOPPED_EARLY})


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial."""

    trial: str
    parameters: Parameters
    run_folder: str
    """Below the sweep's folder."""
    log: str
    """What its processes said, below the sweep's folder."""
    state: TrialState = TrialState.RUNNING
    exit_code: int | None = None
    metric: float | None = None
    """The last value that it logged."""
    seconds: float | None = None
    """Of its last start."""
    failed_evaluations: tuple[str, ...] = ()
    """Evaluations that failed while it went on."""


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """A sweep and its trials so far, in their order."""

    name: str
    definition: Mapping[str, object]
    """What decides the trials and what they train; a sweep goes on only with the same."""
    metric: Metric | None
    num_trials: int
    trials: tuple[TrialRecord, ...] = ()

    def summary(self) -> str:
        """Returns such as ``1 of 3 failed`` or ``3 of 3 finished, 1 with a failed evaluation``."""
        states = [trial.state for trial in self.trials]
        parts = [f"{states.count(state)} of {self.num_trials} {state.replace('_', ' ')}"
                 for state in TrialState if state in states]  # fmt: skip
        missing = self.num_trials - len(states)
        if missing:
            parts.append(f"{missing} of {self.num_trials} not started")
        spoilt = sum(bool(trial.failed_evaluations) for trial in self.trials)
        if spoilt:
            parts.append(f"{spoilt} with a failed evaluation")
        return ", ".join(parts)

    def as_json(self) -> str:
        """Returns the content of ``trials.json``."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def write_record(folder: Path, record: SweepRecord) -> None:
    """Writes ``trials.json`` whole or not at all."""
    write_files({folder / TRIALS_FILE: record.as_json()})


def read_trials(folder: Path, definition: Mapping[str, object]) -> tuple[TrialRecord, ...]:
    """Returns the trials that an earlier start of this sweep has recorded.

    Raises:
        LaunchError: the file is damaged, or another sweep's.
    """
    path = folder / TRIALS_FILE
    if not path.exists():
        return ()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _require(content, {"definition": dict, "trials": list})
        before, rows = content["definition"], [_record(row) for row in content["trials"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path} is damaged ({error!r}). Mend it, or choose another folder with --out.") from error
    now = json.loads(json.dumps(definition))
    changed = sorted(key for key in now.keys() | before.keys() if now.get(key) != before.get(key))
    if changed:
        raise LaunchError(
            f"{folder} holds a sweep with other {', '.join(changed)}. Start it as it was started, or choose another "
            "folder with --out."
        )
    return tuple(rows)


def values_of(run_folder: Path, metric: Metric | None) -> tuple[float, ...]:
    """Returns the values of the metric in a run's ``metrics.jsonl``, oldest first; lines that hold none are passed."""
    path = run_folder / "metrics.jsonl"
    if metric is None or not path.exists():
        return ()
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the line that is being written, or one that a full disk cut
        value = row.get(metric.name) if isinstance(row, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(float(value))
    return tuple(found)


def failed_evaluations_of(run_folder: Path) -> tuple[str, ...]:
    """Returns what a run's ``summary.json`` says of evaluations that failed while training went on.

    A file that cannot be read counts as one: nobody knows what has failed.
    """
    path = run_folder / "summary.json"
    if not path.exists():
        return ()
    try:
        rows = json.loads(path.read_text(encoding="utf-8")).get("failed_evaluations", [])
        return tuple(f"{row['hook']} at step {row['step']}: {row['error']}" for row in rows)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return (f"{path} cannot be read ({error!r})",)


def tail_of(log: Path, num_lines: int = 20) -> str:
    """Returns the last lines of a log, or an empty text where there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:])


def _record(row: Mapping[str, object]) -> TrialRecord:
    given = dict(row)
    given["state"] = TrialState(str(given["state"]))
    _require(given, {"trial": str, "parameters": dict, "run_folder": str, "log": str})
    failed = given["failed_evaluations"]
    given["failed_evaluations"] = tuple(failed) if isinstance(failed, list) else ()
    return TrialRecord(**given)  # type: ignore[arg-type]  # a missing or unknown key is a damaged file


def _require(given: Mapping[str, object], kinds: Mapping[str, type]) -> None:
    for key, kind in kinds.items():
        if not isinstance(given[key], kind):
            raise TypeError(f"{key} is {given[key]!r}")
