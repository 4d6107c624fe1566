"""Who asks first: one question goes ahead of all others, so that a server that refuses everything is asked once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from physedit.eval_hooks.judges.judge import JudgeUnavailable

_FIRST_ALONE_S = 0.25
"""How long the first one goes alone: a refusal comes at once, an answer may take a second."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a question came, by ``time.monotonic``."""

    at_s: float


class QuestionQueue:
    """Lets the first question go ahead, and tells those that wait whether the judge has left. For threads."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._first_is_under_way = False
        self._alone_until_s = 0.0
        self._answered_at_s: float | None = None
        self._has_failed_since = False
        self._left: tuple[float, JudgeUnavailable] | None = None

    def arrive(self) -> Arrival:
        """Returns when a question came."""
        return Arrival(time.monotonic())

    @contextmanager
    def in_turn(self, arrival: Arrival) -> Iterator[None]:
        """Waits until a question may be sent; inside, it is under way.

        Raises:
            JudgeUnavailable: since this question came, another one has found that the judge has left.
        """
        goes_ahead = self._goes_ahead()
        try:
            if not goes_ahead:
                self._wait_for_the_first(arrival)
            self.raise_if_left(arrival)
            yield
        finally:
            if goes_ahead:
                self._first_is_under_way = False

    def _goes_ahead(self) -> bool:
        with self._told:
            if self.has_answered() or self._first_is_under_way:
                return False
            self._first_is_under_way = True
            self._alone_until_s = time.monotonic() + _FIRST_ALONE_S
            return True

    def _wait_for_the_first(self, arrival: Arrival) -> None:
        """Waits until it is answered or refused, or has gone alone for long enough."""
        with self._told:
            left_s = self._alone_until_s - time.monotonic()
            self._told.wait_for(lambda: self.has_answered() or self._has_left(arrival), max(0.0, left_s))

    def count_answer(self) -> None:
        """Notes that the server answered."""
        with self._told:
            self._answered_at_s = time.monotonic()
            self._has_failed_since = False
            self._told.notify_all()

    def has_answered(self) -> bool:
        """True if a question was ever answered."""
        return self._answered_at_s is not None

    def fails_alone(self, failing_since_s: float, *, is_fault: bool) -> bool:
        """True if it is one question that fails, and not the judge that has left.

        Others were answered while it failed; or the server was reached, and this is the first such failure since it
        last answered: a second one in a row means that nobody is answered.
        """
        with self._told:
            if self._answered_at_s is None:
                return False
            is_first, self._has_failed_since = not self._has_failed_since, True
            return self._answered_at_s > failing_since_s or (is_fault and is_first)

    def leave(self, error: JudgeUnavailable) -> JudgeUnavailable:
        """Notes why the judge has left, and returns it; questions that come later may try again."""
        with self._told:
            self._left = time.monotonic(), error
            self._told.notify_all()
        return error

    def raise_if_left(self, arrival: Arrival) -> None:
        """Ends a question that has waited while the judge left.

        Raises:
            JudgeUnavailable: it did, for the reason that another question found.
        """
        left = self._left
        if left is not None and self._has_left(arrival):
            raise type(left[1])(str(left[1]))

    def _has_left(self, arrival: Arrival) -> bool:
        return self._left is not None and self._left[0] >= arrival.at_s
