"""The judge: what answers a yes/no question about a region of an edited picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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
    """The question could not be sent, or its call failed while others were answered."""
    UNSCORED = "unscored"
    """Not asked, or asked in vain, because the judge could not be reached: neither right nor wrong, and asked again."""


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

    @property
    def num_askers(self) -> int:
        """How many threads may ask at once; 1 for a judge that bears no threads or gains nothing by them."""
        ...

    @property
    def usage(self) -> Mapping[str, object]:
        """What asking has taken in this process, for the record: requests, tokens, money, the model that answered.

        Empty for a judge that takes nothing.
        """
        ...

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        """The verdict on one question.

        Args:
            image: uint8 ``[3, H, W]``, the whole edited picture; None if it cannot be read.
            question: text and region.

        Raises:
            JudgeUnavailable: the judge cannot be reached at all. Trouble with one question is a verdict, not an error.
            JudgeRefusesAll: it refuses every question alike.
        """
        ...


@runtime_checkable
class RemembersAnswers(Protocol):
    """A judge that answers from what it was told before where it can."""

    def without_memory(self) -> Judge:
        """Returns the same judge, which asks anew each time and keeps nothing."""
        ...


def asked_anew(judge: Judge) -> Judge:
    """Returns ``judge`` as one that answers nothing from memory."""
    return judge.without_memory() if isinstance(judge, RemembersAnswers) else judge


@runtime_checkable
class RemoteJudge(Protocol):
    """A judge that is asked over the network, which costs."""

    def stored(self, image: Tensor | None, question: JudgeQuestion) -> Verdict | None:
        """The verdict on a question that was answered before, None if it would have to be sent; sends nothing.

        Args:
            image: as in ``Judge.answer``.
            question: as in ``Judge.answer``.
        """
        ...

    def stop(self) -> None:
        """Has nothing be asked any more, because the process ends: questions raise ``JudgeUnavailable``."""
        ...

    def price_usd(self, num_input_tokens: float, num_output_tokens: float) -> float | None:
        """What tokens cost, None where that is not known."""
        ...


class JudgeUnavailable(RuntimeError):
    """The judge cannot be reached; no more questions can be answered now. The evaluation can be finished later."""


class JudgeRefusesAll(JudgeUnavailable):
    """The server refuses every question alike: a wrong model, key, quota or setting, which waiting does not mend.

    Attributes:
        verdict: on the question that was refused, where it may be that one alone; None for any other question.
    """

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


def is_final(verdict: Verdict | None, protocol: JudgeProtocol) -> bool:
    """Tells whether a question with this verdict is done with; else it is asked again on the next run.

    A yes or no is. By a protocol that scores whatever the judge said, as the published one does, so is a reply without
    a yes or no, and a refusal: the published script never asks twice. A failed call never is, though it may be scored.
    """
    if verdict is None or verdict.kind in (VerdictKind.ERROR, VerdictKind.UNSCORED):
        return False
    return verdict.kind in (VerdictKind.YES, VerdictKind.NO) or protocol.is_correct(verdict, "Yes") is not None
