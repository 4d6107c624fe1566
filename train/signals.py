"""What is asked of a running process from outside: signals, and files in the run folder."""

import enum
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

logger = logging.getLogger(__name__)

SAVE_FILE = "SAVE"
"""Touched in the run folder, it has the run save and go on; the run removes it as it sees it, before it saves."""
STOP_FILE = "STOP"
"""Touched in the run folder, it has the run save and stop, as SIGTERM does."""
_SECONDS_BETWEEN_LOOKS = 1.0
"""Ours: a look costs a round trip on a shared file system."""


class Stopped(BaseException):
    """The run was asked to stop: it is saved and can be resumed. As KeyboardInterrupt, it is no error to catch."""


class Request(enum.IntEnum):
    """What is asked of the run; the larger goes first."""

    NONE = 0
    SAVE = 1
    STOP = 2


class StopFlag:
    """Which signal asked the process to stop, if any, and whether one asked it to save."""

    signal_number: int | None = None
    save_is_asked: bool = False

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as a shell reports a process that a signal ended."""
        return 128 + (self.signal_number or signal.SIGTERM)


class RequestFiles:
    """The files by which a run is asked without a signal. Rank 0 has them."""

    def __init__(self, folder: Path) -> None:
        """Removes those that are older than this process: they asked an earlier start. Newer ones are for this run."""
        self._files = {Request.STOP: folder / STOP_FILE, Request.SAVE: folder / SAVE_FILE}
        self._next_look = 0.0
        started = psutil.Process().create_time()
        for path in self._files.values():
            if path.exists() and path.stat().st_mtime < started:
                logger.warning("%s was there before this start and is removed: it asked an earlier one.", path)
                path.unlink(missing_ok=True)

    def asked(self) -> Request:
        """Returns what the files ask, looking once a second at most; a file that was seen is gone."""
        now = time.monotonic()
        if now < self._next_look:
            return Request.NONE
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        for request, path in self._files.items():
            if path.exists():
                path.unlink(missing_ok=True)
                return request
        return Request.NONE


@contextmanager
def stop_on_signal() -> Iterator[StopFlag]:
    """Turns SIGTERM and SIGINT into a raised flag, and SIGUSR1 into a wish to save and go on.

    Launchers send SIGTERM more than once (to the process, then to its group), so only a second SIGINT, from a person
    who does not want to wait, acts as usual.
    """
    flag = StopFlag()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}

    def remember(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            flag.save_is_asked = True
            return
        if number == signal.SIGINT and flag.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.signal_number = number

    for number in before:
        signal.signal(number, remember)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
