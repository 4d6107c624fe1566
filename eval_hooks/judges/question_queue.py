"""Who asks first: one question goes ahead of all others, so that a server that refuses everything is asked once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from physedit.eval_hooks.judges.judge import JudgeUnavailable

_FIRST_ALONE_S = 0.25
"""How long the first one goes alone: a refusal comes at once, an answer may take a second."""
_MOST_FAILED_IN_A_ROW = 16
"""How many questions may fail while none but a probe is answered: a picture of PICABench has up to 7 questions."""


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
        self._answer_sent_at_s: float | None = None
        self._finding_out = threading.Lock()
        self._num_failed_in_a_row = 0
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

    def count_answer(self, sent_at_s: float) -> None:
        """Notes that the server answered a question, which was sent then by ``time.monotonic``."""
        self._num_failed_in_a_row = 0
        self._note_answer(sent_at_s)

    def _note_answer(self, sent_at_s: float) -> None:
        with self._told:
            self._answer_sent_at_s = max(sent_at_s, self._answer_sent_at_s or 0.0)
            self._told.notify_all()

    def has_answered(self) -> bool:
        """True if a question was ever answered."""
        return self._answer_sent_at_s is not None

    def verify_others_are_answered(
        self, error: JudgeUnavailable, last_sent_s: float, arrival: Arrival, is_another_answered: Callable[[], bool]
    ) -> None:
        """Makes sure that one question fails, and that the judge has not left; one thread finds out for all.

        Only an answer to what was sent after this question's last try proves it: the server may have left between.

        Args:
            error: what the question failed by.
            last_sent_s: when it was sent for the last time.
            arrival: of that question.
            is_another_answered: asks another question, if none that was sent later is answered.

        Raises:
            JudgeUnavailable: no other is answered either, or too many in a row have failed with none between.
        """
        with self._finding_out:
            if self._has_answered_what_was_sent_after(last_sent_s):
                return
            self.raise_if_left(arrival)
            self._num_failed_in_a_row += 1
            asked_at_s = time.monotonic()
            if self._num_failed_in_a_row <= _MOST_FAILED_IN_A_ROW and is_another_answered():
                self._note_answer(asked_at_s)
            elif not self._has_answered_what_was_sent_after(last_sent_s):  # nor was one while the probe failed
                raise self.leave(error)

    def _has_answered_what_was_sent_after(self, at_s: float) -> bool:
        return self._answer_sent_at_s is not None and self._answer_sent_at_s > at_s

    def leave(self, error: JudgeUnavailable) -> JudgeUnavailable:
        """Notes why the judge has left, and returns it; questions that come later may try again."""
        self._num_failed_in_a_row = 0
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
