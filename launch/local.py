"""Starts a plan on this machine and waits for it."""

import os
import signal
import subprocess
from collections.abc import Mapping
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


def start(plan: LaunchPlan) -> int:
    """Writes the plan's files, runs its command and returns the exit code, 128 + N where signal N ended it.

    SIGTERM, SIGINT and SIGUSR1 of this process are passed to the command, once each time they come, and SIGUSR2 as
    SIGTERM. The command has a session of its own, so that a terminal's Ctrl-C does not reach its processes a second
    time.
    """
    write_files(plan.files)
    process: subprocess.Popen[bytes] | None = None
    early: list[signal.Signals] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        wanted = PASSED_ON[signal.Signals(number)]
        if process is None:
            early.append(wanted)
        else:
            process.send_signal(wanted)

    before = {number: signal.signal(number, forward) for number in PASSED_ON}
    try:
        process = subprocess.Popen(plan.argv, env=os.environ | dict(plan.environment), start_new_session=True)
        for wanted in early:
            process.send_signal(wanted)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def write_files(files: Mapping[Path, str]) -> None:
    """Writes each file whole: a reader sees the old one or the new one. Folders are made."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
