"""The judge: what answers a yes/no question about a region of an edited picture."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from physedit.data_loaders.sample import Box

if TYPE_CHECKING:
    from physedit.eval_hooks.judges.protocols import JudgeProtocol


class VerdictKind(StrEnum):
    """What became of a question."""

    YES = "yes"
    NO = "no"
    UNPARSED = "unparsed"
    """The judge spoke, but neither yes nor no could be read from it."""
    REFUSED = "refused"
    """The judge declined to answer."""
    ERROR = "error"
    """No answer came back."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer: what it means, the judge's own words, and its reason.

    ``answer`` is what the protocol compares with the reference, the published evaluator's ``model_answer``: ``Yes``,
    ``No``, or any other text such as ``Not sure, ``; empty where ``kind`` says it all.
    """

    kind: VerdictKind
    raw: str
    explanation: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """A yes/no question and the region it asks about, in a frame whose long side is 1024; None is the whole picture."""

    text: str
    box: Box | None


class Judge(Protocol):
    """Answers questions about pictures. Cropping to the question's box belongs to the judge."""

    @property
    def judge_id(self) -> str:
        """Model, endpoint and hash of the prompt or rules: names everything that changes an answer."""
        ...

    @property
    def note(self) -> str:
        """One sentence for every report about what this judge is."""
        ...

    @property
    def protocol(self) -> JudgeProtocol:
        """How it is asked and understood."""
        ...

    def answer(self, image: Tensor, question: JudgeQuestion) -> Verdict:
        """The verdict on one question.

        Args:
            image: uint8 ``[3, H, W]``, the whole edited picture.
            question: text and region.

        Raises:
            JudgeUnavailable: the judge cannot be reached at all. Trouble with one question is a verdict, not an error.
        """
        ...


class JudgeUnavailable(RuntimeError):
    """The judge cannot be reached; no question can be answered. It ends the evaluation, which can be continued."""
