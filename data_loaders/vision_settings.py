"""Which vision-language model is asked, where, how and how often, and what can go wrong in asking."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

OPENAI_URL = "https://api.openai.com/v1"


class VisionUnavailable(Exception):
    """The server did not answer within the patience of the settings; what was answered before is kept.

    Attributes:
        last_sent_s: when the last try was sent, by ``time.monotonic``; infinite if none was.
    """

    def __init__(self, message: str, *, last_sent_s: float = math.inf) -> None:
        super().__init__(message)
        self.last_sent_s = last_sent_s


class VisionBudgetSpent(VisionUnavailable):
    """The budget of requests or of money is spent; nothing more is sent."""


class VisionRequestError(ValueError):
    """The server refuses the request as such, so that repeating it is useless; the message says what it said.

    Attributes:
        status: the server's HTTP status; None if nothing was sent.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class VisionApi(StrEnum):
    """In which form a server is asked."""

    CHAT = "chat"
    """Chat Completions, which every server speaks."""
    RESPONSES = "responses"
    """Responses, which OpenAI's models are reached by."""


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """Which model is asked, where and how. None leaves a choice to the server."""

    model: str
    """The model's name as the server knows it."""
    base_url: str | None = None
    """The server's address up to ``/v1``; None is OpenAI's."""
    api_key_env: str | None = None
    """Name of the environment variable with the key. None: OPENAI_API_KEY for OpenAI's server, no key for others."""
    timeout_s: float = 120.0
    """Longest wait for one answer."""
    patience_s: float = 1800.0
    """How long one question is asked again while the server is busy or away: rate limits can last minutes."""
    longest_wait_s: float = 60.0
    """Longest wait between two tries, unless the server asks for more."""
    max_parallel: int = 4
    """Questions under way at the same time."""
    max_tokens: int | None = 2048
    """Longest answer, thinking included."""
    temperature: float | None = None
    """Some models take no other than their own."""
    api: VisionApi = VisionApi.CHAT
    """The form of request and reply."""
    top_p: float | None = None
    """Share of the probability that answers are drawn from."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer; Chat Completions alone knows them."""
    reasoning_effort: str | None = None
    """How long a reasoning model may think, such as ``low``."""
    response_schema: Mapping[str, object] | None = None
    """JSON schema that the answer must fit."""
    max_failures: int | None = None
    """Tries of one question that may fail by a fault of the server (500, unreadable answer); None: patience decides."""
    max_requests: int | None = None
    """Most requests of this client, repeated ones included; None: no limit."""
    max_cost_usd: float | None = None
    """Most money that this client may spend, by the two prices; None: no limit."""
    usd_per_million_input: float | None = None
    """Price of a million input tokens."""
    usd_per_million_output: float | None = None
    """Price of a million output tokens."""

    def __post_init__(self) -> None:
        numbers = {
            "timeout_s": self.timeout_s,
            "patience_s": self.patience_s,
            "longest_wait_s": self.longest_wait_s,
            "max_parallel": self.max_parallel,
            "max_tokens": self.max_tokens,
            "max_failures": self.max_failures,
            "max_requests": self.max_requests,
            "max_cost_usd": self.max_cost_usd,
        }
        wrong = [f"{name}={value}" for name, value in numbers.items() if value is not None and value <= 0]
        if not self.model or wrong:
            raise VisionRequestError(
                f"A vision model cannot be asked with model={self.model!r} {' '.join(wrong)}: the model needs a name, "
                "and times, counts and budgets must be above 0."
            )
        if self.stop and self.api is VisionApi.RESPONSES:
            raise VisionRequestError("stop has no effect with api=responses, which knows none. Leave it out.")
        self._refuse_secrets()
        self._refuse_unpriced_budget()

    @property
    def name(self) -> str:
        """The model and its server, for messages."""
        return f"{self.model} at {self.base_url or OPENAI_URL}"

    def _refuse_secrets(self) -> None:
        """Refuses keys where they would be written into configs and reports; the messages do not quote them."""
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_]\w*", self.api_key_env):
            raise VisionRequestError(
                "api_key_env is not the name of an environment variable. Put the key into one, such as MY_KEY, and "
                "give its name: api_key_env=MY_KEY. The key itself must not stand in a config."
            )
        if self.base_url is None:
            return
        parts = urlsplit(self.base_url)
        if parts.username or parts.password or parts.query:
            raise VisionRequestError(
                f"base_url at {parts.hostname} holds a name, a password or a query, which would be written into "
                "reports. Give the address alone, and the key through api_key_env."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port_of_range(parts):
            raise VisionRequestError(
                f"base_url={self.base_url} is no address. Give the server's up to /v1, such as http://HOST:8000/v1, "
                "with a port of 1 to 65535."
            )

    def _refuse_unpriced_budget(self) -> None:
        if self.max_cost_usd is not None and None in (self.usd_per_million_input, self.usd_per_million_output):
            raise VisionRequestError(
                f"max_cost_usd={self.max_cost_usd} needs the model's prices: set usd_per_million_input and "
                "usd_per_million_output."
            )


def _has_port_of_range(parts: SplitResult) -> bool:
    """True without a port, or with one of 1 to 65535."""
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
