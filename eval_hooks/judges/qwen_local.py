"""Qwen2.5-VL as a judge in this process, for models small enough to lie beside the editor."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from torch import Tensor

from physedit.data_loaders.vision_wire import VisionReply
from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeRefusesAll, Verdict
from physedit.eval_hooks.judges.protocols import JudgeProtocol, choose_protocol
from physedit.eval_hooks.judges.verdicts import unsent, verdict_of
from physedit.models.vision_chat import VisionChat


class QwenLocalJudge:
    """Answers greedily, one question after the other; the model is loaded at the first one."""

    def __init__(
        self,
        *,
        weights: str,
        protocol: str = "official",
        max_tokens: int = 256,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """Names the model; nothing is loaded yet.

        Args:
            weights: a folder or hub id of a Qwen2.5-VL model, or ``random_tiny``.
            protocol: ``official``, by the published Qwen script, or ``strict``, in words alone: no schema holds it.
            max_tokens: longest answer.
            device: where it is to lie; ``auto`` is CUDA if there is any.
            dtype: ``auto`` (as stored), ``bfloat16``, ``float16`` or ``float32``.

        Raises:
            ValueError: a setting that cannot be used.
        """
        if max_tokens < 1:
            raise ValueError(f"judge.max_tokens is {max_tokens}; expected at least 1.")
        self._protocol = choose_protocol(protocol, "chat")
        self._max_tokens, self._dtype = max_tokens, dtype
        self._chat = VisionChat(weights, device=device, dtype=dtype)

    @property
    def judge_id(self) -> str:
        """Model, library, protocol and parameters."""
        library = f"transformers-{version('transformers')}"
        parameters = f"max_tokens={self._max_tokens} dtype={self._dtype}"
        return f"{self._chat.weights}@{library} {self._protocol.protocol_id} {parameters}"

    @property
    def note(self) -> str:
        """One sentence for every report about what this judge is."""
        return f"Answers come from {self._chat.weights} in this process, by the {self._protocol.name} protocol."

    @property
    def protocol(self) -> JudgeProtocol:
        """How it is asked and understood."""
        return self._protocol

    @property
    def num_askers(self) -> int:
        """1: the model answers one question at a time."""
        return 1

    @property
    def usage(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def answer(self, image: Tensor | None, question: JudgeQuestion) -> Verdict:
        """The verdict on one question.

        Args:
            image: uint8 ``[3, H, W]``, the whole edited picture; None if it cannot be read.
            question: text and region.

        Raises:
            JudgeRefusesAll: the weights cannot be loaded.
        """
        content = self._protocol.shown(image, question.box)
        if content is None:
            return unsent(image, question.box)
        prompt, is_text_first = self._protocol.prompt(question.text), self._protocol.is_text_first
        try:
            text, is_cut = self._chat.reply(content, prompt, is_text_first=is_text_first, max_tokens=self._max_tokens)
        except ValueError as error:
            raise JudgeRefusesAll(str(error)) from error
        reply = VisionReply(text=text, refusal=None, is_cut=is_cut, num_input_tokens=0, num_output_tokens=0)
        return verdict_of(reply, self._protocol)
