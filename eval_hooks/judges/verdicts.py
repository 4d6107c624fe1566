"""What becomes of a question that was answered, refused, not sent or failed, by the judge's protocol."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from physedit.data_loaders.sample import Box
from physedit.data_loaders.vision_wire import VisionReply
from physedit.eval_hooks.judges.judge import Verdict, VerdictKind
from physedit.eval_hooks.judges.protocols import FAILED_CALL, JudgeProtocol


def verdict_of(reply: VisionReply, protocol: JudgeProtocol) -> Verdict:
    """Returns the meaning of a reply; a refusal keeps its own kind, whatever the protocol scores it as."""
    verdict = protocol.parse(reply.text)
    if reply.refusal is not None:
        return Verdict(VerdictKind.REFUSED, reply.refusal, "the judge refused", verdict.answer)
    if reply.is_cut and verdict.kind is VerdictKind.UNPARSED and not _scores(protocol, VerdictKind.UNPARSED):
        return replace(verdict, explanation="the answer was cut off: raise judge.max_tokens")
    return verdict


def failed_call(said: str, protocol: JudgeProtocol) -> Verdict:
    """Returns the verdict on a question whose call failed although others are answered.

    Officially, the reply is the one that the published script makes up, which is wrong and counts.
    """
    made_up = (
        protocol.parse(FAILED_CALL) if _scores(protocol, VerdictKind.ERROR) else Verdict(VerdictKind.ERROR, "", "")
    )
    return replace(made_up, kind=VerdictKind.ERROR, explanation=said)


def unsent(image: Tensor | None, box: Box | None) -> Verdict:
    """Returns the verdict on a question of which the protocol sends nothing."""
    if image is None:
        return Verdict(VerdictKind.ERROR, "", "not sent to the judge: the picture cannot be read")
    return Verdict(VerdictKind.ERROR, "", f"not sent to the judge: the box {box} does not meet the picture")


def _scores(protocol: JudgeProtocol, kind: VerdictKind) -> bool:
    return protocol.is_correct(Verdict(kind, "", ""), "Yes") is not None
