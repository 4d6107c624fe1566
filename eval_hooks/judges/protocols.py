"""The two ways of asking a judge: as the published evaluator does, and strictly.

A protocol decides which picture a judge is shown, what it is asked, what its reply means and whether that is right. The
client that sends it and the model behind it belong to the judge. Boxes lie in the frame in which the shown picture's
long side is 1024 pixels.

Source: github.com/Andrew0613/PICABench at 0514acd, PicaEval_gpt.py and PicaEval_qwen.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.images import read_rgb
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import Box, DatasetRowError
from physedit.eval_hooks.judges import crops
from physedit.eval_hooks.judges.box_units import BoxUnit, box_in_frame, box_unit_of
from physedit.eval_hooks.judges.judge import Verdict, VerdictKind
from physedit.eval_hooks.judges.replies import official_equal, official_verdict, strict_verdict

INSTRUCTION = (
    "\n\nPlease provide a structured answer in the following JSON format:\n"
    '{"answer": "Yes" or "No", "explanation": "Brief explanation of your reasoning"}\n\n'
    "Output ONLY valid JSON. No extra text."
)
"""What follows every question, byte for byte. Source: PicaEval_gpt.py and PicaEval_qwen.py, the same in both."""

FAILED_CALL = "Error: all attempts failed"
"""The reply that PicaEval_gpt.py makes up when every attempt fails; it parses, and counts as wrong."""
FAILED_TASK_ANSWER = "Error"
"""The ``model_answer`` that PicaEval_gpt.py stores when its own code fails on a question; counts as wrong."""


class JudgeProtocol(Protocol):
    """How a judge is asked and understood. Pure, picklable, and safe to share between threads."""

    @property
    def name(self) -> str:
        """``official`` or ``strict``."""
        ...

    @property
    def protocol_id(self) -> str:
        """Name, version and hash of the prompt and the picture rules: changes when an answer could."""
        ...

    @property
    def is_text_first(self) -> bool:
        """True if the text comes before the picture."""
        ...

    @property
    def response_schema(self) -> Mapping[str, object] | None:
        """JSON schema that the server must hold the answer to; None to ask in words alone."""
        ...

    def read(self, path: Path) -> Tensor:
        """Decodes an output picture to uint8 ``[3, H, W]`` by the protocol's rules.

        Raises:
            DatasetRowError: no such file, or no picture.
        """
        ...

    def shown(self, image: Tensor | None, box: Box | None) -> bytes | None:
        """Returns the encoded picture the judge sees (``media_type`` tells JPEG from PNG), None to send nothing.

        Args:
            image: uint8 ``[3, H, W]``, the whole picture; None if it is missing or cannot be read.
            box: the question's region; None for the whole picture.
        """
        ...

    def prompt(self, question: str) -> tuple[str, ...]:
        """Returns the text parts that go with the picture, in order."""
        ...

    def parse(self, text: str) -> Verdict:
        """Returns the meaning of a reply."""
        ...

    def is_correct(self, verdict: Verdict, reference: str) -> bool | None:
        """Tells whether a verdict is right; None if it is left out of the accuracy."""
        ...


class OfficialPath(StrEnum):
    """The published evaluator's two scripts, which differ in what the judge gets."""

    GPT = "gpt"
    """One text part before a picture of two generations of JPEG; the reply's margins are stripped before it is read."""
    QWEN = "qwen"
    """Two text parts after a picture of one generation of JPEG; whole pictures are handed over without loss."""


class OfficialProtocol:
    """The published evaluator's protocol with every quirk, so that its numbers come out equal to the last digit.

    An unreadable picture is replaced by a white one and asked about all the same; a box that cannot be cropped shows
    the whole picture; a reply without a yes or no, and a call that failed, are wrong.
    """

    name = "official"
    response_schema: Mapping[str, object] | None = None

    def __init__(self, path: OfficialPath | str = OfficialPath.GPT) -> None:
        """Chooses the script whose protocol it is.

        Raises:
            ValueError: no such script.
        """
        if path not in tuple(OfficialPath):
            raise ValueError(f"The official protocol has the paths {', '.join(OfficialPath)}, not {path!r}.")
        self.path = OfficialPath(path)

    @property
    def is_text_first(self) -> bool:
        """True on the GPT path: its script sends the text before the picture, the other one after it."""
        return self.path is OfficialPath.GPT

    @property
    def protocol_id(self) -> str:
        """``official-gpt-1`` or ``official-qwen-1`` with a hash."""
        return _identity(f"official-{self.path}-1", INSTRUCTION, crops.OFFICIAL_RULES)

    def read(self, path: Path) -> Tensor:
        """Decodes as the scripts do: no EXIF orientation, and transparency is dropped rather than composited.

        Raises:
            DatasetRowError: no such file, or no picture.
        """
        return read_as_official(path)

    def shown(self, image: Tensor | None, box: Box | None) -> bytes:
        """Returns the script's very bytes: crop with 20 pixels around, long side 1024, JPEG of quality 90.

        Where the Qwen script hands pixels over that no JPEG holds, they come as PNG.
        """
        picture = None if image is None else as_image(image)
        if self.path is OfficialPath.GPT:
            return crops.shown_by_gpt(picture, box)
        return crops.shown_by_qwen(picture, box)

    def prompt(self, question: str) -> tuple[str, ...]:
        """Returns question and instruction, joined on the GPT path."""
        return (question + INSTRUCTION,) if self.path is OfficialPath.GPT else (question, INSTRUCTION)

    def parse(self, text: str) -> Verdict:
        """Returns the script's reading of a reply."""
        return official_verdict(text.strip() if self.path is OfficialPath.GPT else text)

    def is_correct(self, verdict: Verdict, reference: str) -> bool:
        """Compares the texts, whatever they are: neither a refusal nor a failed call is left out."""
        return official_equal(verdict.answer or verdict.kind.value, reference)


_STRICT_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "enum": ["Yes", "No"]},
        "explanation": {"type": "string"},
    },
    "required": ["answer", "explanation"],
    "additionalProperties": False,
}


class StrictProtocol:
    """The same question about the same region, without the quirks.

    Nothing is sent about a picture that cannot be read or a box that lies outside it; the answer is held to a schema
    and read from its own field; what is no yes or no is left out and counted.
    """

    name = "strict"
    is_text_first = False
    response_schema: Mapping[str, object] | None = _STRICT_SCHEMA

    def __init__(self, box_unit: BoxUnit | str = BoxUnit.FRAME_1024) -> None:
        """States what the numbers of boxes count; PICABench's count the frame's pixels.

        Raises:
            ValueError: no such unit, or none at all: it cannot be told from the numbers.
        """
        self._unit = box_unit_of(box_unit)

    @property
    def protocol_id(self) -> str:
        """``strict-1`` with a hash."""
        unit = () if self._unit is BoxUnit.FRAME_1024 else (self._unit.value,)
        return _identity("strict-1", INSTRUCTION, crops.STRICT_RULES, str(_STRICT_SCHEMA), *unit)

    def read(self, path: Path) -> Tensor:
        """Decodes upright and on white, as pictures are read everywhere else.

        Raises:
            DatasetRowError: no such file, or no picture.
        """
        return read_rgb(path)

    def shown(self, image: Tensor | None, box: Box | None) -> bytes | None:
        """Returns the region as JPEG, None without a picture or where the box does not meet it."""
        if image is None:
            return None
        framed = None if box is None else box_in_frame(box, self._unit, image.shape[-1], image.shape[-2])
        return crops.shown_strictly(as_image(image), framed)

    def prompt(self, question: str) -> tuple[str, ...]:
        """Returns question and instruction as one text."""
        return (question + INSTRUCTION,)

    def parse(self, text: str) -> Verdict:
        """Returns the last explicit verdict."""
        return strict_verdict(text)

    def is_correct(self, verdict: Verdict, reference: str) -> bool | None:
        """Compares yes or no with the reference; None for any other verdict."""
        is_answered = verdict.kind in (VerdictKind.YES, VerdictKind.NO)
        return official_equal(verdict.kind.value, reference) if is_answered else None


def choose_protocol(name: str, api: str, box_unit: str | None = BoxUnit.FRAME_1024) -> JudgeProtocol:
    """Returns the protocol ``official`` or ``strict``; officially, ``api=chat`` goes with the Qwen script's path.

    Raises:
        ValueError: another name, or a unit of boxes that the protocol does not know.
    """
    unit = box_unit_of(box_unit)
    if name == "official":
        if unit is not BoxUnit.FRAME_1024:
            raise ValueError(
                f"judge.box_unit is {unit}, but the published scripts know boxes of the 1024-pixel frame alone. Use "
                "judge.protocol=strict."
            )
        return OfficialProtocol(OfficialPath.QWEN if api == "chat" else OfficialPath.GPT)
    if name == "strict":
        return StrictProtocol(unit)
    raise ValueError(f"judge.protocol is {name!r}; expected official or strict.")


def read_as_official(path: Path) -> Tensor:
    """Decodes a picture as the published scripts do, to uint8 ``[3, H, W]``.

    Raises:
        DatasetRowError: no such file, or no picture.
    """
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
    except MemoryError:
        raise
    # Pillow's readers raise whatever parsing meets: struct.error, IndexError, EOFError, zlib.error and more.
    except Exception as error:
        problem = RowProblem.MISSING_FILE if isinstance(error, FileNotFoundError) else RowProblem.UNREADABLE
        raise DatasetRowError(f"The picture file {path} cannot be read: {error}.", reason=problem) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)  # a view: showing it needs no copy


def media_type(content: bytes) -> str:
    """Returns the media type of the bytes that ``shown`` gives."""
    return "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"


def _identity(name: str, *rules: str) -> str:
    joined = "\0".join(rules)  # no two lists of texts are alike
    return f"{name}-{hashlib.sha256(joined.encode()).hexdigest()[:12]}"
