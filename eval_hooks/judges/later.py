"""No judge yet: the pictures are made, and another judge answers later."""

from collections.abc import Mapping

from torch import Tensor

from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeUnavailable, Verdict
from physedit.eval_hooks.judges.protocols import JudgeProtocol, choose_protocol


class LaterJudge:
    """Answers nothing, so that every question stays open for ``physedit judge RUN judge=NAME``."""

    def __init__(self, *, protocol: str = "official") -> None:
        """Names the protocol by which pictures are measured meanwhile.

        Raises:
            ValueError: there is no such protocol.
        """
        self._protocol = choose_protocol(protocol, "chat")

    @property
    def judge_id(self) -> str:
        """Tells that there is none."""
        return f"none {self._protocol.protocol_id}"

    @property
    def note(self) -> str:
        """One sentence for every report."""
        return "No judge was chosen; the questions are open."

    @property
    def protocol(self) -> JudgeProtocol:
        """By which pictures are measured."""
        return self._protocol

    @property
    def num_askers(self) -> int:
        """One."""
        return 1

    @property
    def usage(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:  # noqa: ARG002  (nothing is answered)
        """Answers nothing.

        Raises:
            JudgeUnavailable: always.
        """
        raise JudgeUnavailable("judge=none was chosen: have it judged later, with physedit judge RUN judge=NAME")
