"""Worker processes that outlive a signal to the whole process group, but not the process they work for."""

import atexit
import ctypes
import os
import signal
from collections.abc import Callable
from functools import cache, partial
from multiprocessing.sharedctypes import RawValue
from types import FrameType


def end_with_parent_alone() -> Callable[[int], None]:
    """Returns a ``worker_init_fn`` that lets workers end when the process that calls this does, and not before.

    Launchers and terminals send SIGTERM and SIGINT to every process of a run. A worker that died of it would take
    the training process with it, before that can save. SIGTERM counts only once the training process is leaving:
    it then waits for its workers without limit, so they must not ignore it.
    """
    return partial(_outlive_signals, _leaving())


@cache
def _leaving() -> ctypes.c_bool:
    """A flag in shared memory, without a lock since a signal handler reads it: true once this process is leaving."""
    flag: ctypes.c_bool = RawValue(ctypes.c_bool, False)
    # Runs before the exit handler of multiprocessing, which is older and sends SIGTERM to the workers.
    atexit.register(setattr, flag, "value", True)
    return flag


def _outlive_signals(is_leaving: ctypes.c_bool, _worker_id: int) -> None:
    def end_if_leaving(_number: int, _frame: FrameType | None) -> None:
        if is_leaving.value:
            os._exit(0)

    signal.signal(signal.SIGTERM, end_if_leaving)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
