"""SIGTERM and SIGINT as a flag that the loop reads between steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Which signal asked the process to stop, if any."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as a shell reports a process that a signal ended."""
        return 128 + (self.signal_number or signal.SIGTERM)


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
