"""Runs the trials of a sweep on this machine, one launcher process after another; a restart goes on where it was."""

import fcntl
import logging
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from physedit.launch.local import Passing, end_with_parent, exit_code, passing_signals
from physedit.launch.plan import LaunchError
from physedit.launch.sweep_file import Parameters, SweepFile
from physedit.launch.sweep_search import Outcome, next_parameters
from physedit.launch.sweep_trials import (
    DONE,
    SweepRecord,
    TrialRecord,
    TrialState,
    failed_evaluations_of,
    read_trials,
    tail_of,
    values_of,
    write_record,
)

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0
"""At a running trial's metrics, where a rule may stop it."""
_NOT_STARTED = 127
"""The exit code that shells give a command which cannot be found."""
ASKED_TO_STOP = frozenset(128 + number for number in (signal.SIGTERM, signal.SIGINT))


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep that can be run."""

    sweep: SweepFile
    folder: Path
    num_trials: int
    seed: int
    definition: Mapping[str, object]
    """What must be the same for a sweep to go on."""
    command: Callable[[str, Parameters], Sequence[str]]
    """Returns the command of a trial from its name and values."""
    environment: Mapping[str, str]
    """Of trials, beside this process' own."""
    stops_at_first_failure: bool = False


def trial_name(number: int) -> str:
    """Returns the name of a trial's run folder; trials are counted from 1."""
    return f"trial_{number + 1:03d}"


def run_sweep(plan: SweepPlan) -> tuple[SweepRecord, int]:
    """Runs every trial that is not done yet; returns what became of all, and the exit code of the sweep.

    A trial that was interrupted, or that failed, is started again with its values, in its folder; the run itself goes
    on from its newest checkpoint. The exit code is 0 if no trial failed, 1 if one did, and 128 + N if signal N ended
    the sweep; the trial that was running has then been told to save and stop.

    Raises:
        LaunchError: the folder belongs to another sweep or cannot be made, or a process is running this one.
    """
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The sweep's folder cannot be made: {error}. Choose another with --out.") from error
    with _locked(plan.folder), passing_signals() as passing:
        trials = list(read_trials(plan.folder, plan.definition))
        for number in range(plan.num_trials):
            if number < len(trials) and trials[number].state in DONE:
                continue
            if number == len(trials):
                trials.append(_new_trial(plan, number, trials))
            trials[number] = replace(trials[number], state=TrialState.RUNNING, exit_code=None)
            _save(plan, trials)
            trials[number] = _run_trial(plan, trials[number], trials[:number] + trials[number + 1 :], passing)
            _save(plan, trials)
            _say(plan, trials[number])
            is_failed = trials[number].state is TrialState.FAILED
            if passing.stop is not None or (is_failed and plan.stops_at_first_failure):
                break
        record = _record(plan, trials)
        if passing.stop is not None:
            return record, 128 + passing.stop
        return record, int(any(trial.state not in DONE for trial in trials))


def _new_trial(plan: SweepPlan, number: int, before: Sequence[TrialRecord]) -> TrialRecord:
    past = [
        Outcome(
            trial.parameters,
            values_of(plan.folder / trial.run_folder, plan.sweep.metric) if trial.state in DONE else (),
            was_stopped=trial.state is TrialState.STOPPED_EARLY,
        )
        for trial in before
    ]
    name = trial_name(number)
    return TrialRecord(name, next_parameters(plan.sweep, number, plan.seed, past), name, f"{name}/launch/trial.log")


def _run_trial(plan: SweepPlan, trial: TrialRecord, others: Sequence[TrialRecord], passing: Passing) -> TrialRecord:
    argv = plan.command(trial.trial, trial.parameters)
    log = plan.folder / trial.log
    log.parent.mkdir(parents=True, exist_ok=True)
    logger.info("%s of %d (%s) starts.", trial.trial, plan.num_trials, _named(trial.parameters))
    started = time.monotonic()
    with log.open("ab") as stream:
        stream.write(f"$ {shlex.join(argv)}\n".encode())
        stream.flush()
        try:
            process = subprocess.Popen(
                argv, env=os.environ | dict(plan.environment), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip
        except OSError as error:
            stream.write(f"{argv[0]} cannot be started: {error}\n".encode())
            return replace(trial, state=TrialState.FAILED, exit_code=_NOT_STARTED)
        passing.to(process)
        was_stopped = _wait(plan, trial, others, process)
        passing.to(None)
    code = exit_code(process.returncode)
    folder = plan.folder / trial.run_folder
    values = values_of(folder, plan.sweep.metric)
    return replace(
        trial,
        state=_state(code, was_stopped=was_stopped, is_asked=passing.stop is not None),
        exit_code=code,
        metric=values[-1] if values else None,
        seconds=round(time.monotonic() - started, 1),
        failed_evaluations=failed_evaluations_of(folder) if code == 0 else (),
    )


def _wait(
    plan: SweepPlan, trial: TrialRecord, others: Sequence[TrialRecord], process: "subprocess.Popen[bytes]"
) -> bool:
    """Waits for the trial; returns whether the rule of ``early_terminate`` stopped it."""
    rule, metric = plan.sweep.early_stop, plan.sweep.metric
    if rule is None or metric is None:
        process.wait()
        return False
    theirs = [values_of(plan.folder / other.run_folder, metric) for other in others]
    while True:
        try:
            process.wait(timeout=SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            mine = values_of(plan.folder / trial.run_folder, metric)
            if rule.stops(mine, theirs, maximize=metric.goal == "maximize"):
                logger.info("%s is stopped: %s=%g after %d values is too far behind.", trial.trial, metric.name,
                            mine[-1], len(mine))  # fmt: skip
                process.terminate()
                process.wait()
                return True
        else:
            return False


def _state(code: int, *, was_stopped: bool, is_asked: bool) -> TrialState:
    if code == 0:
        return TrialState.FINISHED
    if was_stopped:
        return TrialState.STOPPED_EARLY
    return TrialState.INTERRUPTED if is_asked or code in ASKED_TO_STOP else TrialState.FAILED


def _say(plan: SweepPlan, trial: TrialRecord) -> None:
    value = "" if trial.metric is None or plan.sweep.metric is None else f", {plan.sweep.metric.name}={trial.metric:g}"
    logger.info("%s %s after %.0f s%s.", trial.trial, trial.state.replace("_", " "), trial.seconds or 0.0, value)
    for failed in trial.failed_evaluations:
        logger.warning("%s trained to its end, but an evaluation failed: %s", trial.trial, failed)
    if trial.state is TrialState.FAILED:
        log = plan.folder / trial.log
        logger.error("%s failed with exit code %s. The end of %s:\n%s", trial.trial, trial.exit_code, log, tail_of(log))


def _named(parameters: Parameters) -> str:
    return ", ".join(f"{key}={value}" for key, value in parameters.items())


def _record(plan: SweepPlan, trials: Sequence[TrialRecord]) -> SweepRecord:
    return SweepRecord(
        plan.sweep.name, plan.definition, plan.sweep.metric, max(plan.num_trials, len(trials)), tuple(trials)
    )


def _save(plan: SweepPlan, trials: Sequence[TrialRecord]) -> None:
    write_record(plan.folder, _record(plan, trials))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(
                f"Another process is running the sweep in {folder}. Wait for it, or choose another folder with --out."
            ) from error
        yield
