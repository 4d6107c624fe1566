"""Asking a vision-language model over an OpenAI-compatible server: messages with pictures in, text out.

Waits grow and honour the server's hint, a request that cannot succeed is not repeated, tokens and money are counted and
can be limited. The key is read from an environment variable, kept in the connection alone, and blotted out of whatever
the server says.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from physedit.data_loaders.vision_retry import (
    Gate,
    Setback,
    Trouble,
    grown_wait_s,
    is_worth_repeating,
    trouble_of,
    wait_hint_s,
)
from physedit.data_loaders.vision_settings import (
    OPENAI_URL,
    VisionApi,
    VisionBudgetSpent,
    VisionRequestError,
    VisionSettings,
    VisionUnavailable,
)
from physedit.data_loaders.vision_usage import VisionUsage
from physedit.data_loaders.vision_wire import Unreadable, VisionMessage, VisionReply, send

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

_OPENAI_KEY = "OPENAI_API_KEY"
_NO_KEY = "none"
"""The client insists on a key; servers without keys ignore it."""

_LISTING_S, _LONGEST_WAIT_S = 20.0, 8.0
"""Longest wait for a server's list of models, and between two tries to get it."""
_WAITS_OF_A_PROBE_S, _LONGEST_PROBE_S = (0.5, 1.0), 60.0
_POLICY_CODES = frozenset({"content_filter", "content_policy_violation"})
"""Error codes of a 400 that speaks of this one request's content. Source: OpenAI's and Azure's API references."""


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
        self._gate = Gate(threading.BoundedSemaphore(settings.max_parallel))
        self._num_under_way = 0
        # Jitter decides when is asked, never what comes out.
        self._jitter = random.Random()

    def ask(
        self,
        messages: Sequence[VisionMessage],
        *,
        before_sending: Callable[[], None] = lambda: None,
        before_failing: Callable[[VisionUnavailable], None] = lambda _error: None,
    ) -> VisionReply:
        """Returns the model's reply, asking again while the server is busy or away.

        Args:
            messages: the conversation.
            before_sending: called once a place is free; what it raises ends the question, and nothing is sent.
            before_failing: called with the error, the place still taken; what it raises is raised instead.

        Raises:
            VisionRequestError: the server refuses the request; not repeated.
            VisionUnavailable: no answer within the settings' patience or number of failures.
            VisionBudgetSpent: the budget of requests or money is spent.
        """
        with self._gate.places:
            before_sending()
            try:
                return self._ask_until_answered(messages)
            except VisionBudgetSpent:
                raise
            except VisionUnavailable as error:
                before_failing(error)
                raise

    def answers(self, messages: Sequence[VisionMessage]) -> bool:
        """True if a request is answered within three tries, besides rate limits, which are waited for; takes no place.

        Raises:
            VisionBudgetSpent: the budget of requests or money is spent.
        """
        until_s, num_failed = time.monotonic() + min(_LONGEST_PROBE_S, self.settings.patience_s), 0
        while self._gate.pass_through():
            try:
                outcome = self._try_once(messages)
            except VisionRequestError:
                return False
            if isinstance(outcome, VisionReply):
                return True
            num_failed, hint_s = num_failed + (outcome.trouble is not Trouble.BUSY), outcome.hint_s or 0.0
            if num_failed > len(_WAITS_OF_A_PROBE_S) or time.monotonic() + hint_s > until_s:
                return False
            self._wait(outcome, max(hint_s, _WAITS_OF_A_PROBE_S[max(0, num_failed - 1)]))
        return False

    def require_server(self, patience_s: float = 60.0) -> None:
        """Makes sure that somebody answers at the address, whatever is said; the list of models is asked for, free.

        Args:
            patience_s: how long a server that is just starting is waited for.

        Raises:
            VisionRequestError: nobody answers.
        """
        import openai

        listing = self._openai.with_options(timeout=min(self.settings.timeout_s, _LISTING_S)).models
        until, num_tries = time.monotonic() + min(patience_s, self.settings.patience_s), 0
        while True:
            try:
                listing.list()
            except openai.APIConnectionError as error:
                said = self._blotted(str(error.__cause__ or error))
            except (openai.APIError, ValueError):  # whatever it says, it is there
                return
            else:
                return
            num_tries += 1
            wait_s = grown_wait_s(num_tries, min(_LONGEST_WAIT_S, self.settings.longest_wait_s), 1.0)
            if time.monotonic() + wait_s > until or self._gate.is_shut.is_set():
                raise VisionRequestError(
                    f"Nobody answers for {self.settings.name}: {said} ({num_tries} tries). Start the server, or mend "
                    "its address."
                )
            logger.info("%s: %s. Trying again in %.1f s.", self.settings.name, said, wait_s)
            self._gate.is_shut.wait(wait_s)

    def stop(self) -> None:
        """Has nothing be sent any more, and ends the waits of questions under way; for the end of a process."""
        self._gate.is_shut.set()

    def _ask_until_answered(self, messages: Sequence[VisionMessage]) -> VisionReply:
        started, num_tries, num_faults = time.monotonic(), 0, 0
        while True:
            if not self._gate.pass_through():
                raise VisionUnavailable(f"{self.settings.name} is not asked any more: this process was told to stop")
            num_tries, sent_at_s = num_tries + 1, time.monotonic()
            outcome = self._try_once(messages)
            if isinstance(outcome, VisionReply):
                return replace(outcome, sent_at_s=sent_at_s)
            num_faults += outcome.trouble is Trouble.FAULT
            wait_s = outcome.hint_s
            if wait_s is None:
                share = self._jitter.uniform(0.5, 1.0)
                wait_s = grown_wait_s(num_tries, self.settings.longest_wait_s, share)
            waited_s = time.monotonic() - started
            if waited_s + wait_s > self.settings.patience_s or num_faults == self.settings.max_failures:
                raise VisionUnavailable(
                    f"{self.settings.name} did not answer within {waited_s:.0f} s and {num_tries} tries (next wait "
                    f"{wait_s:.0f} s, patience {self.settings.patience_s:.0f} s). It last said: {outcome.said}",
                    last_sent_s=sent_at_s,
                )
            logger.info("%s: %s. Asking again in %.1f s.", self.settings.name, outcome.said, wait_s)
            self._wait(outcome, wait_s)

    def _try_once(self, messages: Sequence[VisionMessage]) -> VisionReply | Setback:
        import openai

        self._reserve()
        try:
            answer = send(self._openai, self.settings, messages)
        except openai.APIStatusError as error:
            return self._refused(error)
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            return Setback(self._blotted(f"no connection ({type(cause).__name__}: {cause})"), Trouble.AWAY)
        except UnicodeEncodeError as error:
            raise VisionRequestError(
                f"{self.settings.name} cannot be sent a text with half a character ({error.reason}). Mend the text.",
                400,
            ) from error
        except (openai.APIError, json.JSONDecodeError) as error:
            return Setback(self._blotted(f"an answer that cannot be read ({error})"), Trouble.FAULT)
        finally:
            with self._gate.lock:
                self._num_under_way -= 1
        if isinstance(answer, str):
            raise VisionRequestError(
                f"{self.settings.name} answers with a page instead of JSON "
                f"({self._blotted(' '.join(answer.split())[:80])}). The address must end where /chat/completions or "
                "/responses follows, mostly in /v1."
            )
        if isinstance(answer, Unreadable):
            return Setback(self._blotted(answer.said), Trouble.FAULT)
        return self._counted(answer)

    def _reserve(self) -> None:
        """Counts a request before it is sent, so that threads together keep the budgets."""
        settings = self.settings
        with self._gate.lock:
            usage = self.usage
            if settings.max_requests is not None and usage.num_requests >= settings.max_requests:
                raise VisionBudgetSpent(
                    f"{settings.name} was sent {usage.num_requests} requests, as many as max_requests allows. Raise it "
                    "and run again to go on."
                )
            if settings.max_cost_usd is not None:
                # What is under way will cost about as much as what came back.
                per_reply = usage.cost_usd(settings) / max(1, usage.num_replies)
                spent = usage.cost_usd(settings) + per_reply * self._num_under_way
                if spent >= settings.max_cost_usd:
                    raise VisionBudgetSpent(
                        f"{settings.name} has cost about {spent:.2f} USD of max_cost_usd={settings.max_cost_usd:g}. "
                        "Raise it and run again to go on."
                    )
            usage.num_requests += 1
            self._num_under_way += 1

    def _refused(self, error: openai.APIStatusError) -> VisionReply | Setback:
        said = self._blotted(f"HTTP {error.status_code}: {_words_of(error)}")
        if error.status_code == 400 and error.code in _POLICY_CODES:
            return self._counted(VisionReply("", said, is_cut=False, num_input_tokens=0, num_output_tokens=0))
        if not is_worth_repeating(error.status_code, error.code):
            raise VisionRequestError(
                f"{self.settings.name} refuses the request, so it was not repeated. {said}. Mend what it names: the "
                "model's name, the key, the quota, a setting, or how many pictures the server takes in one request.",
                error.status_code,
            ) from None  # the cause holds the request with its headers
        return Setback(said, trouble_of(error.status_code), wait_hint_s(error.response.headers))

    def _counted(self, reply: VisionReply) -> VisionReply:
        with self._gate.lock:
            self.usage.num_replies += 1
            self.usage.num_input_tokens += reply.num_input_tokens
            self.usage.num_output_tokens += reply.num_output_tokens
            if reply.model:
                self.usage.models[reply.model] = self.usage.models.get(reply.model, 0) + 1
        refusal = None if reply.refusal is None else self._blotted(reply.refusal)
        return replace(reply, text=self._blotted(reply.text), refusal=refusal)

    def _blotted(self, text: str) -> str:
        """Returns a text without the key, which some servers quote."""
        key = str(self._openai.api_key)
        return text if key == _NO_KEY else text.replace(key, "[key]")

    def _wait(self, setback: Setback, wait_s: float) -> None:
        with self._gate.lock:
            self.usage.num_retries += 1
        if setback.trouble is Trouble.BUSY:
            self._gate.close_for(wait_s)
        else:
            self._gate.is_shut.wait(wait_s)


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
            f"The key of {settings.base_url or OPENAI_URL} is to be read from the environment variable {name}, which "
            "is not set. Set it, or name another one."
        )
    # Retries are ours: the client's own give up after seconds.
    client = openai.OpenAI(
        api_key=key, base_url=settings.base_url or OPENAI_URL, timeout=settings.timeout_s, max_retries=0
    )
    # Each is imported on its first use: now rather than by the first question, while all others wait for it.
    _ = client.responses if settings.api is VisionApi.RESPONSES else client.chat.completions
    return client


def _words_of(error: openai.APIStatusError) -> str:
    body = error.body
    said = body.get("message") if isinstance(body, dict) else body
    return " ".join(str(said or error.response.text or error.message).split())[:500]
