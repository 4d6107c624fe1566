"""When a model is asked again: growing waits, the server's own hint, and what is not worth repeating."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

_FIRST_WAIT_S = 1.0
_WORTH_REPEATING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_SPENT_QUOTA = "insufficient_quota"
"""A 429 with this code does not pass. Source: OpenAI's API reference, error codes."""


class Trouble(StrEnum):
    """What a try failed by, which decides for whom the wait holds and how often it is repeated."""

    BUSY = "busy"
    """The server asks everyone to slow down: all questions wait."""
    AWAY = "away"
    """It cannot be reached, or says that it will be back."""
    FAULT = "fault"
    """It failed on this question: a fault that may come again."""


@dataclass(frozen=True, slots=True)
class Setback:
    """A try that failed but is worth repeating: what the server said, and the wait it asks for."""

    said: str
    trouble: Trouble
    hint_s: float | None = None


def is_worth_repeating(status: int, code: str | None) -> bool:
    """True if the same request may succeed later."""
    return status in _WORTH_REPEATING and code != _SPENT_QUOTA


def trouble_of(status: int) -> Trouble:
    """Returns what an HTTP status tells about the server."""
    if status == 429:
        return Trouble.BUSY
    return Trouble.FAULT if status == 500 else Trouble.AWAY


def grown_wait_s(num_tries: int, longest_s: float, share: float) -> float:
    """Returns the wait after ``num_tries`` failures: 1, 2, 4 ... seconds up to the longest, times ``share``."""
    return min(longest_s, _FIRST_WAIT_S * 2.0 ** min(num_tries - 1, 16)) * share


def wait_hint_s(headers: Mapping[str, str]) -> float | None:
    """Returns the wait a server asks for, from ``retry-after-ms`` or ``retry-after``; None if it asks for none.

    Source: RFC 9110, section 10.2.3 (seconds or a date); the first header is OpenAI's and Azure's.
    """
    milliseconds, after = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if after is None:
            return None
        if re.fullmatch(r"\s*\d+(\.\d*)?\s*", after):
            return float(after)
        until = parsedate_to_datetime(after)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


@dataclass(slots=True)
class Gate:
    """What all threads of a client wait for: a free place, and the time the server has asked for."""

    places: threading.BoundedSemaphore
    lock: threading.Lock = field(default_factory=threading.Lock)
    open_at: float = 0.0
    is_shut: threading.Event = field(default_factory=threading.Event)
    """Set once nothing is to be sent any more; ends all waits."""

    def pass_through(self) -> bool:
        """Waits until the time that the server has asked for is over; False if the gate is shut."""
        while (wait_s := self.open_at - time.monotonic()) > 0 and not self.is_shut.is_set():
            self.is_shut.wait(wait_s)
        return not self.is_shut.is_set()

    def close_for(self, wait_s: float) -> None:
        """Makes everyone wait."""
        with self.lock:
            self.open_at = max(self.open_at, time.monotonic() + wait_s)
