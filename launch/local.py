"""Starts a plan on this machine and waits for it."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from physedit.launch.plan import LaunchPlan

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def start(plan: LaunchPlan) -> int:
    """Writes the plan's files, runs its command and returns the exit code, 128 + N where signal N ended it.

    SIGTERM, SIGINT and SIGUSR1 of this process are passed to the command, once each time they come. The command has a
    session of its own, so that a terminal's Ctrl-C does not reach its processes a second time.
    """
    write_files(plan.files)
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        process = subprocess.Popen(plan.argv, env=os.environ | dict(plan.environment), start_new_session=True)
        for number in early:
            process.send_signal(number)
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
