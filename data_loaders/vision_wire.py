"""The forms of request and reply of an OpenAI-compatible server: Chat Completions and Responses."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from physedit.data_loaders.vision_settings import VisionApi, VisionSettings

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

_SCHEMA_NAME = "answer"
_FILTER = "the server's content filter"

Json = dict[str, Any]
"""A part of a request; the client's own types are unions that a schema of the user's cannot be shown to fit."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded picture, and its media type such as ``image/jpeg``."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class VisionMessage:
    """One turn of a conversation.

    Attributes:
        role: who speaks.
        text: what is said; a tuple is sent as several parts.
        pictures: shown in a user's turn.
        is_text_first: True if the text comes before the pictures.
    """

    role: Literal["system", "user", "assistant"]
    text: str | tuple[str, ...]
    pictures: tuple[Picture, ...] = ()
    is_text_first: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The parts of the text."""
        return (self.text,) if isinstance(self.text, str) else self.text


@dataclass(frozen=True, slots=True)
class VisionReply:
    """What came back.

    Attributes:
        text: the answer; empty if the model refused.
        refusal: the model's or the server's words if it would not answer, else None.
        is_cut: True if the answer ran into ``max_tokens``.
        num_input_tokens: as the server counted; 0 if it did not.
        num_output_tokens: likewise.
        model: the model's name as the server returned it; empty if it named none.
        sent_at_s: when its request was sent, by ``time.monotonic``; 0 if this process sent none.
    """

    text: str
    refusal: str | None
    is_cut: bool
    num_input_tokens: int
    num_output_tokens: int
    model: str = ""
    sent_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An answer that holds no reply; ``said`` quotes its begin."""

    said: str


def send(
    client: openai.OpenAI, settings: VisionSettings, messages: Iterable[VisionMessage]
) -> VisionReply | Unreadable | str:
    """Sends one request and returns the reply; a text is a page instead of JSON.

    Raises:
        openai.OpenAIError: the client's own, unchanged.
    """
    if settings.api is VisionApi.RESPONSES:
        response: Response | str = client.responses.create(**_responses_request(settings, messages))
        return response if isinstance(response, str) else _reply_of_response(response)
    completion: ChatCompletion | str = client.chat.completions.create(**_chat_request(settings, messages))
    return completion if isinstance(completion, str) else _reply_of_completion(completion)


def _chat_request(settings: VisionSettings, messages: Iterable[VisionMessage]) -> Json:
    # OpenAI's newer models take only the new name of the limit, many other servers only the old one.
    limit = "max_completion_tokens" if settings.base_url is None else "max_tokens"
    schema = settings.response_schema
    return _without_none(
        {
            "model": settings.model,
            "messages": [_chat_turn(message) for message in messages],
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "stop": list(settings.stop) or None,
            "reasoning_effort": settings.reasoning_effort,
            limit: settings.max_tokens,
            "response_format": schema
            and {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema, "strict": True}},
        }
    )


def _responses_request(settings: VisionSettings, messages: Iterable[VisionMessage]) -> Json:
    schema, effort = settings.response_schema, settings.reasoning_effort
    return _without_none(
        {
            "model": settings.model,
            "input": [_responses_turn(message) for message in messages],
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "reasoning": effort and {"effort": effort},
            "max_output_tokens": settings.max_tokens,
            "stream": False,  # some servers stream unless told not to
            "text": schema
            and {"format": {"type": "json_schema", "name": _SCHEMA_NAME, "schema": schema, "strict": True}},
        }
    )


def _without_none(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _chat_turn(message: VisionMessage) -> Json:
    if len(message.texts) == 1 and not message.pictures:
        return {"role": message.role, "content": message.texts[0]}
    texts = [{"type": "text", "text": text} for text in message.texts]
    pictures = [{"type": "image_url", "image_url": {"url": _data_url(picture)}} for picture in message.pictures]
    return {"role": message.role, "content": _in_order(message, texts, pictures)}


def _responses_turn(message: VisionMessage) -> Json:
    if len(message.texts) == 1 and not message.pictures:
        return {"role": message.role, "content": message.texts[0]}
    texts = [{"type": "input_text", "text": text} for text in message.texts]
    pictures = [{"type": "input_image", "image_url": _data_url(picture)} for picture in message.pictures]
    return {"role": message.role, "content": _in_order(message, texts, pictures)}


def _in_order(message: VisionMessage, texts: list[Json], pictures: list[Json]) -> list[Json]:
    return [*texts, *pictures] if message.is_text_first else [*pictures, *texts]


def _data_url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"


def _reply_of_completion(answer: ChatCompletion) -> VisionReply | Unreadable:
    if not answer.choices:
        return Unreadable(f"an answer without a choice ({answer.to_json(indent=None)[:200]})")
    choice = answer.choices[0]
    text, refusal = choice.message.content or "", choice.message.refusal
    if refusal is None and choice.finish_reason == "content_filter":
        refusal = text or _FILTER
    usage = answer.usage
    return VisionReply(
        text="" if refusal else text,
        refusal=refusal or None,
        is_cut=choice.finish_reason == "length",
        num_input_tokens=usage.prompt_tokens if usage else 0,
        num_output_tokens=usage.completion_tokens if usage else 0,
        model=answer.model or "",
    )


def _reply_of_response(answer: Response) -> VisionReply | Unreadable:
    if answer.output is None or answer.status in ("failed", "cancelled"):
        return Unreadable(f"a response without output ({answer.to_json(indent=None)[:200]})")
    parts = [part for item in answer.output if item.type == "message" for part in item.content]
    text = "".join(part.text for part in parts if part.type == "output_text")
    refusal = "".join(part.refusal for part in parts if part.type == "refusal")
    reason = answer.incomplete_details.reason if answer.incomplete_details else None
    if not refusal and reason == "content_filter":
        refusal = text or _FILTER
    usage = answer.usage
    return VisionReply(
        text="" if refusal else text,
        refusal=refusal or None,
        is_cut=reason == "max_output_tokens",
        num_input_tokens=usage.input_tokens if usage else 0,
        num_output_tokens=usage.output_tokens if usage else 0,
        model=str(answer.model or ""),
    )
