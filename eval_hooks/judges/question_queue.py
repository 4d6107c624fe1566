"""Who asks first: one question goes ahead of all others, so that a server that refuses everything is asked once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from physedit.eval_hooks.judges.judge import JudgeRefusesAll

_FIRST_ALONE_S = 0.25
"""How long the others wait for the first one: a refusal comes at once, an answer may take a second."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a question came: the time, and how many others had been answered."""

    at_s: float
    num_answered: int


class QuestionQueue:
    """Lets the first question go ahead, and tells those behind it whether the server refused it. For threads."""

    def __init__(self) -> None:
        self._first = threading.Lock()
        self._told = threading.Condition()
        self._num_answered = 0
        self._refused: tuple[float, str] | None = None

    def arrive(self) -> Arrival:
        """Returns when a question came."""
        return Arrival(time.monotonic(), self._num_answered)

    @contextmanager
    def in_turn(self, arrival: Arrival) -> Iterator[None]:
        """Waits until a question may be sent; inside, it is under way.

        Raises:
            JudgeRefusesAll: since this question came, another one was refused for all.
        """
        goes_ahead = self._num_answered == 0 and self._first.acquire(blocking=False)
        try:
            if not goes_ahead:
                with self._told:
                    self._told.wait_for(lambda: self.has_answered() or self._refusal_since(arrival), _FIRST_ALONE_S)
            if refusal := self._refusal_since(arrival):
                raise JudgeRefusesAll(refusal)
            yield
        finally:
            if goes_ahead:
                self._first.release()

    def count_answer(self) -> None:
        """Notes that the server answered."""
        with self._told:
            self._num_answered += 1
            self._told.notify_all()

    def has_answered(self, since: Arrival | None = None) -> bool:
        """True if a question was answered since then, or ever."""
        return self._num_answered > (0 if since is None else since.num_answered)

    def close(self, said: str) -> None:
        """Notes that the server refuses everyone, with its words; questions that come later may try again."""
        with self._told:
            self._refused = time.monotonic(), said
            self._told.notify_all()

    def _refusal_since(self, arrival: Arrival) -> str | None:
        refused = self._refused
        return refused[1] if refused is not None and refused[0] >= arrival.at_s else None
