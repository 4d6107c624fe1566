"""The judge behind an OpenAI-compatible server: GPT-5 over Responses, Qwen2.5-VL on vLLM over Chat Completions, any."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from physedit.data_loaders.vision_client import VisionClient
from physedit.data_loaders.vision_settings import (
    OPENAI_URL,
    VisionApi,
    VisionBudgetSpent,
    VisionRequestError,
    VisionSettings,
    VisionUnavailable,
)
from physedit.data_loaders.vision_wire import Picture, VisionMessage, VisionReply
from physedit.eval_hooks.judges.answer_cache import AnswerCache, Asked, StoredReply
from physedit.eval_hooks.judges.judge import (
    JudgeQuestion,
    JudgeRefusesAll,
    JudgeUnavailable,
    Verdict,
    is_final,
)
from physedit.eval_hooks.judges.protocols import JudgeProtocol, choose_protocol, media_type
from physedit.eval_hooks.judges.question_queue import Arrival, QuestionQueue
from physedit.eval_hooks.judges.verdicts import failed_call, unsent, verdict_of
from physedit.eval_hooks.judges.workbench import WORKBENCH

_REFUSES_ALL = frozenset({None, 401, 402, 403, 404, 405, 429})
"""Statuses of a refusal that holds for every question: wrong key, quota, address or model."""
_ONE_ALONE = "If it refuses this one question alone, run it again: the others are then asked first."

_PROBE, _PROBE_PX = "Is this picture grey all over?", 448
"""What a server is asked, about a grey picture of this size, to see whether it answers at all."""


class OpenAICompatibleJudge:
    """Asks one model on one server. Threads may share it; the key stays in its environment variable."""

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None = None,
        api: str = "chat",
        protocol: str = "official",
        box_unit: str | None = "frame_1024",
        concurrency: int = 16,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        reasoning_effort: str | None = None,
        api_key_env: str | None = None,
        timeout_s: float = 120.0,
        patience_s: float = 600.0,
        max_failures: int | None = 5,
        max_requests: int | None = None,
        max_cost_usd: float | None = None,
        usd_per_million_input: float | None = None,
        usd_per_million_output: float | None = None,
        cache_folder: str | None = None,
    ) -> None:
        """Prepares the client; nothing is sent yet. None leaves a parameter of the model to the server.

        Args:
            model: the model's name as the server knows it.
            base_url: the server's address up to ``/v1``; None is OpenAI's.
            api: ``responses`` or ``chat``; officially, it also decides which of the two published scripts is followed.
            protocol: ``official`` or ``strict``.
            box_unit: what the boxes of questions count, for the strict protocol; see ``BoxUnit``.
            concurrency: questions under way at the same time, in each process.
            temperature: of the model's draw.
            top_p: share of the probability that is drawn from.
            max_tokens: longest answer, thinking included.
            stop: texts that end an answer.
            reasoning_effort: how long the model may think.
            api_key_env: the environment variable with the key; None is OPENAI_API_KEY for OpenAI, no key for others.
            timeout_s: longest wait for one answer.
            patience_s: how long a question is asked again while the server is busy or away.
            max_failures: failures of the server at one question after which it counts as failed; the published script
                tries five times.
            max_requests: most requests of this process.
            max_cost_usd: most money of this process, by the two prices.
            usd_per_million_input: price of a million input tokens.
            usd_per_million_output: price of a million output tokens.
            cache_folder: where replies are kept for other runs; None keeps none.

        Raises:
            ValueError: a setting that cannot be used, no key, or the package openai is not installed.
        """
        if api not in tuple(VisionApi):
            raise ValueError(f"judge.api is {api!r}; expected one of {', '.join(VisionApi)}.")
        if concurrency < 1:
            raise ValueError(f"judge.concurrency is {concurrency}; expected at least 1 question at a time.")
        self._protocol = choose_protocol(protocol, api, box_unit)
        settings = VisionSettings(
            model=model,
            base_url=base_url,
            api=VisionApi(api),
            api_key_env=api_key_env,
            timeout_s=timeout_s,
            patience_s=patience_s,
            max_parallel=concurrency,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            stop=tuple(stop),
            reasoning_effort=reasoning_effort,
            response_schema=self._protocol.response_schema,
            max_failures=max_failures,
            max_requests=max_requests,
            max_cost_usd=max_cost_usd,
            usd_per_million_input=usd_per_million_input,
            usd_per_million_output=usd_per_million_output,
        )
        self._client = VisionClient(settings)
        self._cache = None if cache_folder is None else AnswerCache(Path(cache_folder).expanduser())
        self._queue = QuestionQueue()
        self._answered: VisionMessage | None = None
        self._num_askers = 1 if concurrency == 1 else 2 * concurrency

    @property
    def judge_id(self) -> str:
        """Model, endpoint, form of request, protocol, and every parameter that is not left to the server."""
        settings = self._client.settings
        parameters = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_tokens,
            "stop": list(settings.stop) or None,
            "reasoning_effort": settings.reasoning_effort,
        }
        given = "".join(f" {name}={value}" for name, value in parameters.items() if value is not None)
        endpoint = (settings.base_url or OPENAI_URL).rstrip("/")
        return f"{settings.model}@{endpoint} {settings.api} {self._protocol.protocol_id}{given}"

    @property
    def note(self) -> str:
        """One sentence for every report about what this judge is."""
        settings = self._client.settings
        return f"Answers come from {settings.name} over {settings.api}, by the {self._protocol.name} protocol."

    @property
    def protocol(self) -> JudgeProtocol:
        """How it is asked and understood."""
        return self._protocol

    @property
    def num_askers(self) -> int:
        """As many as questions may be under way, and as many that prepare theirs meanwhile."""
        return self._num_askers

    @property
    def usage(self) -> Mapping[str, object]:
        """Requests, repeated ones, tokens, money, and how often which model answered."""
        used = self._client.usage
        return {**asdict(used), "cost_usd": used.cost_usd(self._client.settings)}

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        """The verdict on one question, from the cache or from the server.

        Args:
            image: uint8 ``[3, H, W]``, the whole edited picture; None if it cannot be read.
            question: text and region.

        Raises:
            JudgeUnavailable: the server does not answer any question any more, or a budget is spent.
            JudgeRefusesAll: it refuses every question alike.
        """
        since = self._queue.arrive()
        asked = self._prepared(image, question)
        if asked is None:
            return unsent(image, question.box)
        stored = self._remembered(asked)
        if stored is not None:
            return stored
        reply = self._ask(asked, since)
        if isinstance(reply, Verdict):
            return reply
        verdict = verdict_of(reply, self._protocol)
        if self._cache is not None and is_final(verdict, self._protocol):
            self._cache.store(asked, _as_stored(reply))
        return verdict

    def stored(self, image: Tensor | None, question: JudgeQuestion) -> Verdict | None:
        """The verdict on a question that was answered before, None if it would have to be sent; sends nothing."""
        asked = self._prepared(image, question)
        return unsent(image, question.box) if asked is None else self._remembered(asked)

    def stop(self) -> None:
        """Has nothing be asked any more, because the process ends; questions that wait end at once."""
        self._client.stop()

    def price_usd(self, num_input_tokens: float, num_output_tokens: float) -> float | None:
        """What tokens cost by the two prices, None where one is not set."""
        settings = self._client.settings
        if settings.usd_per_million_input is None or settings.usd_per_million_output is None:
            return None
        spent = num_input_tokens * settings.usd_per_million_input
        return (spent + num_output_tokens * settings.usd_per_million_output) / 1e6

    def without_memory(self) -> OpenAICompatibleJudge:
        """Returns this judge without its cache of replies; usage and budget are shared."""
        other = copy.copy(self)
        other._cache = None
        return other

    def _prepared(self, image: Tensor | None, question: JudgeQuestion) -> Asked | None:
        """Returns what would be sent; None if the protocol sends nothing about such a picture."""
        with WORKBENCH.preparing():
            content = self._protocol.shown(image, question.box)
        return None if content is None else Asked(self.judge_id, self._protocol.prompt(question.text), content)

    def _remembered(self, asked: Asked) -> Verdict | None:
        stored = None if self._cache is None else self._cache.find(asked)
        return None if stored is None else verdict_of(_as_reply(stored), self._protocol)

    def _ask(self, asked: Asked, since: Arrival) -> VisionReply | Verdict:
        """Returns the server's reply, or the verdict that stands for a call that failed."""
        if any(_has_half_a_character(text) for text in asked.prompt):
            return failed_call("not sent to the judge: the question holds half a character", self._protocol)
        message = self._message(asked.prompt, asked.picture)
        with self._queue.in_turn(since):
            try:
                reply = self._client.ask(
                    [message],
                    before_sending=lambda: self._queue.raise_if_left(since),
                    before_failing=lambda error: self._queue.verify_others_are_answered(
                        JudgeUnavailable(str(error)), error.last_sent_s, since, self._answers_another
                    ),
                )
            except VisionBudgetSpent as error:
                raise self._queue.leave(JudgeUnavailable(str(error))) from error
            except VisionUnavailable as error:  # the others are answered
                return failed_call(str(error), self._protocol)
            except VisionRequestError as error:
                failed = failed_call(str(error), self._protocol)
                if error.status in _REFUSES_ALL:
                    raise self._queue.leave(JudgeRefusesAll(str(error))) from error
                if self._queue.has_answered():
                    return failed
                raise self._queue.leave(JudgeRefusesAll(f"{error} {_ONE_ALONE}", failed)) from error
            self._answered = message
            self._queue.count_answer(reply.sent_at_s)
            return reply

    def _answers_another(self) -> bool:
        """Asks a question once more that was answered; without one, a plain question of its own."""
        return self._client.answers([self._answered or self._probe()])

    def _probe(self) -> VisionMessage:
        content = self._protocol.shown(torch.full((3, _PROBE_PX, _PROBE_PX), 128, dtype=torch.uint8), None)
        assert content is not None, "a picture without a box can always be shown"
        return self._message(self._protocol.prompt(_PROBE), content)

    def _message(self, prompt: Sequence[str], content: bytes) -> VisionMessage:
        picture = Picture(content, media_type(content))
        return VisionMessage("user", tuple(prompt), (picture,), is_text_first=self._protocol.is_text_first)


def _has_half_a_character(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _as_reply(stored: StoredReply) -> VisionReply:
    return VisionReply(
        text=stored.text,
        refusal=stored.refusal,
        is_cut=False,
        num_input_tokens=stored.num_input_tokens,
        num_output_tokens=stored.num_output_tokens,
        model=stored.model,
    )


def _as_stored(reply: VisionReply) -> StoredReply:
    return StoredReply(reply.text, reply.refusal, reply.model, reply.num_input_tokens, reply.num_output_tokens)
