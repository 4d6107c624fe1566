"""Who computes next while many threads ask a judge: as many as there are cores, and what is begun goes first."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Workbench:
    """Lends places to threads that get questions ready; all at once, all of them would be late.

    A picture is opened only while no question about an open one waits for a place.
    """

    def __init__(self, num_places: int) -> None:
        """Has so many places, all free."""
        lock = threading.Lock()
        self._to_prepare, self._to_open = threading.Condition(lock), threading.Condition(lock)
        self._num_free, self._num_to_prepare = num_places, 0

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Waits for a place to open a picture; inside, it is taken."""
        with self._to_open:
            self._to_open.wait_for(lambda: self._num_free > 0 and self._num_to_prepare == 0)
            self._num_free -= 1
            self._call_next()
        try:
            yield
        finally:
            self._give_back()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Waits for a place to prepare a question about an open picture; inside, it is taken."""
        with self._to_prepare:
            self._num_to_prepare += 1
            self._to_prepare.wait_for(lambda: self._num_free > 0)
            self._num_to_prepare -= 1
            self._num_free -= 1
            self._call_next()
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        with self._to_open:
            self._num_free += 1
            self._call_next()

    def _call_next(self) -> None:
        """Wakes one thread for a free place. Who takes it calls the next, so that no free place is forgotten."""
        if self._num_free > 0:
            (self._to_prepare if self._num_to_prepare > 0 else self._to_open).notify()


WORKBENCH = Workbench((os.cpu_count() or 1) + 1)
"""All judges of a process share its cores; one place more, because its threads also wait for the interpreter."""
