"""Asking a vision-language model over an OpenAI-compatible server: messages with pictures in, text out.

Waits grow and honour the server's hint, a request that cannot succeed is not repeated, and tokens are counted. The key
is read from an environment variable and kept nowhere.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion, ChatCompletionContentPartImageParam, ChatCompletionMessageParam

logger = logging.getLogger(__name__)

_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_KEY = "OPENAI_API_KEY"
_FIRST_WAIT_S = 1.0
_NO_KEY = "none"
"""The client insists on a key; servers without keys ignore it."""

_WORTH_REPEATING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_POLICY_CODES = frozenset({"content_filter", "content_policy_violation"})
"""Error codes of a 400 that speaks of this one request's content. Source: OpenAI's and Azure's API references."""


class VisionUnavailable(Exception):
    """The server did not answer within the patience of the settings; what was answered before is kept."""


class VisionRequestError(ValueError):
    """The server refuses the request as such, so that repeating it is useless; the message says what it said."""


@dataclass(frozen=True, slots=True)
class VisionSettings:
    """Which model is asked, where and how."""

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
    max_tokens: int = 2048
    """Longest answer, thinking included."""
    temperature: float | None = None
    """None leaves it to the server; some models take no other."""

    def __post_init__(self) -> None:
        least = min(self.timeout_s, self.patience_s, self.longest_wait_s, self.max_parallel, self.max_tokens)
        if not self.model or least <= 0:
            raise VisionRequestError(
                f"A vision model cannot be asked with {self}: the model needs a name, and times, max_parallel and "
                "max_tokens must be above 0."
            )


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded picture, and its media type such as ``image/jpeg``."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class VisionMessage:
    """One turn of a conversation; pictures come before the text."""

    role: Literal["system", "user", "assistant"]
    text: str
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class VisionReply:
    """What came back.

    Attributes:
        text: the answer; empty if the model refused.
        refusal: the model's or the server's words if it would not answer, else None.
        is_cut: True if the answer ran into ``max_tokens``.
        num_input_tokens: as the server counted; 0 if it did not.
        num_output_tokens: likewise.
    """

    text: str
    refusal: str | None
    is_cut: bool
    num_input_tokens: int
    num_output_tokens: int


@dataclass(slots=True)
class VisionUsage:
    """What a client has used so far."""

    num_requests: int = 0
    num_retries: int = 0
    num_input_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(slots=True)
class _Gate:
    """What all threads of a client wait for: a free place, and the time the server has asked for."""

    places: threading.BoundedSemaphore
    lock: threading.Lock = field(default_factory=threading.Lock)
    open_at: float = 0.0

    def pass_through(self) -> None:
        while (wait_s := self.open_at - time.monotonic()) > 0:
            time.sleep(wait_s)

    def close_for(self, wait_s: float) -> None:
        with self.lock:
            self.open_at = max(self.open_at, time.monotonic() + wait_s)


class VisionClient:
    """Asks one model. Threads may share it; at most ``max_parallel`` of their questions are under way at a time."""

    def __init__(self, settings: VisionSettings) -> None:
        """Prepares the client; nothing is sent yet.

        Raises:
            VisionRequestError: the package openai is not installed, or the key's environment variable is not set.
        """
        self.settings = settings
        self.usage = VisionUsage()
        self._openai = _connect(settings)
        self._gate = _Gate(threading.BoundedSemaphore(settings.max_parallel))
        # Jitter decides when is asked, never what comes out.
        self._jitter = random.Random()

    def ask(self, messages: Sequence[VisionMessage]) -> VisionReply:
        """Returns the model's reply, asking again while the server is busy or away.

        Raises:
            VisionRequestError: the server refuses the request; not repeated.
            VisionUnavailable: no answer within the settings' patience.
        """
        with self._gate.places:
            started, num_tries = time.monotonic(), 0
            while True:
                self._gate.pass_through()
                num_tries += 1
                outcome = self._try_once(messages)
                if isinstance(outcome, VisionReply):
                    return outcome
                wait_s = outcome.hint_s if outcome.hint_s is not None else self._grown_wait_s(num_tries)
                waited_s = time.monotonic() - started
                if waited_s + wait_s > self.settings.patience_s:
                    raise VisionUnavailable(
                        f"{self._name} did not answer within {waited_s:.0f} s and {num_tries} tries (next wait "
                        f"{wait_s:.0f} s, patience {self.settings.patience_s:.0f} s). It last said: {outcome.said}"
                    )
                logger.info("%s: %s. Asking again in %.1f s.", self._name, outcome.said, wait_s)
                self._wait(outcome, wait_s)

    @property
    def _name(self) -> str:
        return f"{self.settings.model} at {self.settings.base_url or _OPENAI_URL}"

    def _try_once(self, messages: Sequence[VisionMessage]) -> VisionReply | _Setback:
        import openai

        try:
            answer = self._send(messages)
        except openai.APIStatusError as error:
            return self._refused(error)
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            return _Setback(f"no connection ({type(cause).__name__}: {cause})", None, is_shared=False)
        except (openai.APIError, json.JSONDecodeError) as error:
            return _Setback(f"an answer that cannot be read ({error})", None, is_shared=False)
        if isinstance(answer, str):
            raise VisionRequestError(
                f"{self._name} answers with a page instead of JSON ({' '.join(answer.split())[:80]}). The address must "
                "end where /chat/completions follows, mostly in /v1."
            )
        if not answer.choices:
            return _Setback(f"an answer without a choice ({answer.to_json(indent=None)[:200]})", None, is_shared=False)
        return self._counted(_reply_of(answer))

    def _send(self, messages: Sequence[VisionMessage]) -> ChatCompletion | str:
        import openai

        limit, temperature = self.settings.max_tokens, self.settings.temperature
        is_openais = self.settings.base_url is None
        # OpenAI's newer models take only the new name of the limit, many other servers only the old one.
        return self._openai.chat.completions.create(
            model=self.settings.model,
            messages=[_as_openai(message) for message in messages],
            temperature=openai.omit if temperature is None else temperature,
            max_completion_tokens=limit if is_openais else openai.omit,
            max_tokens=openai.omit if is_openais else limit,
        )

    def _refused(self, error: openai.APIStatusError) -> VisionReply | _Setback:
        said = f"HTTP {error.status_code}: {_words_of(error)}"
        if error.status_code == 400 and error.code in _POLICY_CODES:
            return self._counted(VisionReply("", said, is_cut=False, num_input_tokens=0, num_output_tokens=0))
        if error.status_code not in _WORTH_REPEATING or error.code == "insufficient_quota":
            raise VisionRequestError(
                f"{self._name} refuses the request, so it was not repeated. {said}. Mend what it names: the model's "
                "name, the key, the quota, or how many pictures the server takes in one request."
            ) from error
        return _Setback(said, wait_hint_s(error.response.headers), is_shared=error.status_code == 429)

    def _counted(self, reply: VisionReply) -> VisionReply:
        with self._gate.lock:
            self.usage.num_requests += 1
            self.usage.num_input_tokens += reply.num_input_tokens
            self.usage.num_output_tokens += reply.num_output_tokens
        return reply

    def _grown_wait_s(self, num_tries: int) -> float:
        longest = min(self.settings.longest_wait_s, _FIRST_WAIT_S * 2.0 ** min(num_tries - 1, 16))
        return longest * self._jitter.uniform(0.5, 1.0)

    def _wait(self, setback: _Setback, wait_s: float) -> None:
        with self._gate.lock:
            self.usage.num_requests += 1
            self.usage.num_retries += 1
        if setback.is_shared:
            self._gate.close_for(wait_s)
        else:
            time.sleep(wait_s)


@dataclass(frozen=True, slots=True)
class _Setback:
    """A try that failed but is worth repeating; a shared one holds for every question of the client."""

    said: str
    hint_s: float | None
    is_shared: bool


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


def _connect(settings: VisionSettings) -> openai.OpenAI:
    try:
        import openai
    except ImportError as error:
        raise VisionRequestError(
            "Asking a vision model needs the package openai. Install it with: pip install -e '.[vision]'"
        ) from error
    name = settings.api_key_env or (_OPENAI_KEY if settings.base_url is None else None)
    key = _NO_KEY if name is None else os.environ.get(name, "").strip()
    if not key:
        raise VisionRequestError(
            f"The key of {settings.base_url or _OPENAI_URL} is to be read from the environment variable {name}, which "
            "is not set. Set it, or name another one."
        )
    # Retries are ours: the client's own give up after seconds.
    return openai.OpenAI(
        api_key=key, base_url=settings.base_url or _OPENAI_URL, timeout=settings.timeout_s, max_retries=0
    )


def _as_openai(message: VisionMessage) -> ChatCompletionMessageParam:
    if message.role == "system":
        return {"role": "system", "content": message.text}
    if message.role == "assistant":
        return {"role": "assistant", "content": message.text}
    if not message.pictures:
        return {"role": "user", "content": message.text}
    return {
        "role": "user",
        "content": [*map(_picture_part, message.pictures), {"type": "text", "text": message.text}],
    }


def _picture_part(picture: Picture) -> ChatCompletionContentPartImageParam:
    url = f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _words_of(error: openai.APIStatusError) -> str:
    body = error.body
    said = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(said or error.response.text or error.message).split())[:500]


def _reply_of(answer: ChatCompletion) -> VisionReply:
    choice = answer.choices[0]
    text, refusal = choice.message.content or "", choice.message.refusal
    if refusal is None and choice.finish_reason == "content_filter":
        refusal = text or "the server's content filter"
    usage = answer.usage
    return VisionReply(
        text="" if refusal else text,
        refusal=refusal or None,
        is_cut=choice.finish_reason == "length",
        num_input_tokens=usage.prompt_tokens if usage else 0,
        num_output_tokens=usage.completion_tokens if usage else 0,
    )
