"""What is asked of a run from outside, by signals and by files, as all its ranks agree on it."""

import signal
import time
from dataclasses import dataclass

from physedit.train.processes import Processes
from physedit.train.signals import Request, RequestFiles, StopFlag

_SECONDS_BETWEEN_AGREEMENTS = 1.0
_MOST_STEPS_BETWEEN_AGREEMENTS = 10
"""Ours: a cluster gives a run that it ends some seconds; steps may become slower than they were."""


class Pace:
    """At which steps ranks agree on what is asked of the run: the same on all of them, about once a second."""

    def __init__(self, processes: Processes) -> None:
        """The first step is one of them."""
        self._processes = processes
        self._num_steps, self._left = 1, 1
        self._since = time.monotonic()

    def is_due(self) -> bool:
        """Tells, once a step, whether this is a step to agree at. One process is always of one mind."""
        self._left -= 1
        return self._left <= 0

    def agree(self) -> None:
        """Settles when the next one is, from how long steps have taken on the slowest rank; all ranks call it."""
        now = time.monotonic()
        step_us = int(1e6 * (now - self._since) / self._num_steps) + 1
        self._since = now
        if self._processes.num_processes > 1:
            fitting = int(1e6 * _SECONDS_BETWEEN_AGREEMENTS) // self._processes.largest(step_us)
            self._num_steps = min(max(1, fitting), _MOST_STEPS_BETWEEN_AGREEMENTS)
        self._left = self._num_steps


@dataclass
class Asking:
    """What is asked of this rank, and what ranks have agreed on."""

    processes: Processes
    pace: Pace
    stop: StopFlag
    files: RequestFiles | None
    """On rank 0."""

    def agreed(self) -> Request:
        """Returns what is asked of any rank. Ranks agree, so that none waits for another in a collective.

        What is asked between two agreements waits for the next one, some steps or about a second later.
        """
        if not self.pace.is_due():
            return Request.NONE
        number = self.stop.signal_number or 0
        asked = Request.NONE if self.files is None else self.files.asked()
        if asked is Request.STOP:
            number = number or signal.SIGTERM
        saves = asked is Request.SAVE or self.stop.save_is_asked
        agreed = self.processes.largest(Request.STOP + number if number else Request.SAVE if saves else Request.NONE)
        self.pace.agree()
        if agreed > Request.STOP:
            self.stop.signal_number = agreed - Request.STOP
            return Request.STOP
        if agreed == Request.SAVE:
            self.stop.save_is_asked = False
        return Request(agreed)

    def stops_here(self) -> bool:
        """Tells whether this rank is asked to stop; a wish to save is kept for the next step."""
        asked = Request.NONE if self.files is None else self.files.asked()
        if asked is Request.SAVE:
            self.stop.save_is_asked = True
        if asked is Request.STOP:
            self.stop.signal_number = signal.SIGTERM
        return bool(self.stop)
