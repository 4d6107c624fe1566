"""The instruction of a pair at PICA-100K's three levels, written by a vision-language model that sees both frames.

A model that will not answer, or not as asked, is a third outcome beside an instruction and an error: the pair is left
out and counted.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from PIL import Image

from physedit.data_loaders.json_reply import last_json_object
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.videos.reasons import Reason
from physedit.data_loaders.vision_client import VisionClient
from physedit.data_loaders.vision_wire import Picture, VisionMessage, VisionReply

TOKEN_LIMITS = {PromptLevel.SUPERFICIAL: 20, PromptLevel.INTERMEDIATE: 128, PromptLevel.EXPLICIT: 256}
"""An instruction has fewer tokens than this, counted as ``num_tokens`` does. Source: arXiv 2510.17681, PICA-100K."""

LAWS = (
    "Light_Propagation",
    "Light_Source_Effects",
    "Reflection",
    "Refraction",
    "Deformation",
    "Causality",
    "Global",
    "Local",
)
"""PICABench's laws as its data spells them."""

OPERATIONS = (
    "add", "remove", "move", "replace", "color", "weather", "season", "time", "wet", "dry", "frozen", "melt", "burn",
    "fracture", "splash", "wrinkle", "others",
)  # fmt: skip
"""Edit operations of PICABench's data."""

_NUM_TRIES = 3
_ASKED_SIDE_PX = 768
"""Long side of the pictures a model is shown: enough to name what changed, and half the price of the stored ones."""

PROMPT_VERSION = 1
"""Part of what a stored answer is known by; to be raised with every change of the prompt."""

_PROMPT = """\
You are shown two photographs of one scene, taken by a camera that stands still. The first is before an edit, the \
second after it. Write the instruction that would lead an image editor from the first photograph to the second, at \
three levels of detail:

- "superficial": under 20 words. Only what to do, as a user would say it.
- "intermediate": under 100 words. What to do, and the physical consequences that must be visible: shadows, \
reflections, supports, deformation, wetness, whatever applies.
- "explicit": under 200 words. The same, with where each consequence shows and what it looks like.

Write in the imperative and speak only of the scene. Do not mention photographs, frames, videos, cameras, "before" or \
"after". Describe only changes that can be seen.

Also name "law", the physical law that matters most, one of: {laws}; or null if none does.
And "operation", one of: {operations}.
{caption}
Answer with one JSON object with the keys superficial, intermediate, explicit, law, operation, and nothing else."""

_CAPTION = "\nThe video these come from was described as follows, which may be wrong: {caption}\n"


@dataclass(frozen=True, slots=True)
class WrittenInstruction:
    """An instruction at three levels, the law and the operation that the model saw, and what asking took."""

    superficial: str
    intermediate: str
    explicit: str
    law: str | None
    operation: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class NoInstruction:
    """The model refused or never answered as asked; ``said`` is its last reply."""

    reason: Reason
    said: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int


Outcome = WrittenInstruction | NoInstruction


def write_instruction(client: VisionClient, source: bytes, target: bytes, caption: str) -> Outcome:
    """Asks for the instruction of a pair, and again with what was wrong, three times in all.

    Args:
        client: asks the model.
        source: the encoded picture before.
        target: the one after.
        caption: what is known of the video; may be empty.

    Raises:
        VisionRequestError: the server refuses the request as such.
        VisionUnavailable: the server does not answer.
    """
    conversation = [VisionMessage("user", _prompt(caption), (_shown(source), _shown(target)))]
    replies: list[VisionReply] = []
    for _ in range(_NUM_TRIES):
        reply = client.ask(conversation)
        replies.append(reply)
        if reply.refusal is not None:
            return NoInstruction(Reason.INSTRUCTION_REFUSED, reply.refusal, *_cost(replies))
        found = checked_answer(reply)
        if not isinstance(found, str):
            return WrittenInstruction(*found, *_cost(replies))
        conversation += [VisionMessage("assistant", reply.text or "(nothing)"), VisionMessage("user", _again(found))]
    return NoInstruction(Reason.INSTRUCTION_UNUSABLE, replies[-1].text, *_cost(replies))


def outcome_from_json(value: Mapping[str, object]) -> Outcome:
    """Returns the outcome that ``outcome_to_json`` was called on."""
    if "reason" in value:
        return NoInstruction(**{**value, "reason": Reason(str(value["reason"]))})  # type: ignore[arg-type]
    return WrittenInstruction(**value)  # type: ignore[arg-type]


def outcome_to_json(outcome: Outcome) -> dict[str, object]:
    """Returns an outcome as values that JSON can hold."""
    return asdict(outcome)


def checked_answer(reply: VisionReply) -> tuple[str, str, str, str | None, str] | str:
    """Returns the three levels, the law and the operation that a reply holds, or what is wrong with it."""
    if reply.is_cut:
        return "the answer was cut off; be shorter"
    found = last_json_object(reply.text)
    if found is None:
        return "there was no JSON object"
    texts = {level: found.get(level.value) for level in PromptLevel}
    for level, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            return f"the key {level.value} holds no text"
        if num_tokens(text) >= TOKEN_LIMITS[level]:
            return f"{level.value} has {num_tokens(text)} tokens, but must have fewer than {TOKEN_LIMITS[level]}"
    law, operation = found.get("law"), found.get("operation")
    if not (law is None or (isinstance(law, str) and law in LAWS)):
        return f"law is {law!r}, but must be null or one of {', '.join(LAWS)}"
    if not isinstance(operation, str) or operation not in OPERATIONS:
        return f"operation is {operation!r}, but must be one of {', '.join(OPERATIONS)}"
    superficial, intermediate, explicit = (" ".join(str(text).split()) for text in texts.values())
    return superficial, intermediate, explicit, law, operation


def num_tokens(text: str) -> int:
    """Returns the number of words and punctuation marks; a tokenizer's count for English is about the same."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def _prompt(caption: str) -> str:
    said = _CAPTION.format(caption=caption) if caption else ""
    return _PROMPT.format(laws=", ".join(LAWS), operations=", ".join(OPERATIONS), caption=said)


def _again(wrong: str) -> str:
    return f"That cannot be used: {wrong}. Answer again, with one JSON object with all five keys and nothing else."


def _shown(content: bytes) -> Picture:
    with Image.open(io.BytesIO(content)) as image:
        picture = image.convert("RGB")
    picture.thumbnail((_ASKED_SIDE_PX, _ASKED_SIDE_PX), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=90)
    return Picture(stream.getvalue(), "image/jpeg")


def _cost(replies: list[VisionReply]) -> tuple[int, int, int]:
    num_input = sum(reply.num_input_tokens for reply in replies)
    return len(replies), num_input, sum(reply.num_output_tokens for reply in replies)
