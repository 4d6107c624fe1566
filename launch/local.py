"""Starts a plan on this machine and waits for it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from physedit.launch.plan import LaunchPlan

PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGUSR1: signal.SIGUSR1,
    # srun answers SIGTERM by killing its tasks at once, but hands SIGUSR2 on: the way to have a job save and stop.
    signal.SIGUSR2: signal.SIGTERM,
}
"""What the command is sent for each signal of this process."""

PR_SET_PDEATHSIG = 1
"""Source: linux/prctl.h."""


class Passing:
    """Passes this process' signals to one command after another."""

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        """The first signal that asked to stop, if one came."""
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[signal.Signals] = []

    def to(self, process: subprocess.Popen[bytes] | None) -> None:
        """Names the command that gets the signals from now on, and what came while there was none; None for none."""
        self._process = process
        if process is not None:
            for wanted in self._early:
                process.send_signal(wanted)
            self._early.clear()

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal."""
        wanted = PASSED_ON[signal.Signals(number)]
        if wanted is not signal.SIGUSR1:
            self.stop = self.stop or wanted
        if self._process is None:
            self._early.append(wanted)
        else:
            self._process.send_signal(wanted)


@contextmanager
def passing_signals() -> Iterator[Passing]:
    """Has signals passed on, once each time they come: SIGTERM, SIGINT and SIGUSR1, and SIGUSR2 as SIGTERM.

    The commands need a session of their own, or a terminal's Ctrl-C reaches them a second time.
    """
    passing = Passing()
    before = {number: signal.signal(number, passing.receive) for number in PASSED_ON}
    try:
        yield passing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(plan: LaunchPlan) -> int:
    """Writes the plan's files, runs its command and returns the exit code, 128 + N where signal N ended it.

    Signals of this process are passed to the command.
    """
    write_files(plan.files)
    with passing_signals() as passing:
        process = subprocess.Popen(plan.argv, env=os.environ | dict(plan.environment), start_new_session=True)
        passing.to(process)
        return exit_code(process.wait())


def exit_code(returncode: int) -> int:
    """Returns 128 + N where signal N ended a process, as a shell does."""
    return returncode if returncode >= 0 else 128 - returncode


def end_with_parent() -> None:
    """Lets a parent that is killed take this process with it, as SIGTERM: a run is saved and does not go on unseen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def write_files(files: Mapping[Path, str]) -> None:
    """Writes each file whole: a reader sees the old one or the new one. Folders are made."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
