"""Text states of instructions as the FLUX pipelines make them, kept for the next time.

Shape legend: B batch, T text tokens, D width.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from physedit.models.memo import TensorMemo
from physedit.models.parts import PipelineParts

logger = logging.getLogger(__name__)

_MEMO_BYTES = 2**26
"""About 10,000 instructions of the toy, and 15 of the released model, whose text states take 4 MiB each."""


class FluxTextStates:
    """Encodes each instruction alone, so that none depends on the rest of its batch."""

    def __init__(self, parts: PipelineParts, max_tokens: int) -> None:
        """Encodes nothing yet.

        Args:
            parts: of a FluxKontextPipeline, whose two tokenizers and text encoders are used.
            max_tokens: length of the T5 sequence; longer instructions are cut, which is said once.
        """
        self._parts = parts
        self._pipeline = parts.pipeline
        self._max_tokens = max_tokens
        self._memo = TensorMemo(_MEMO_BYTES)
        self._has_warned_of_cut = False

    def states_of(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns T5 states ``[B, T, D]`` and pooled CLIP states ``[B, D']``, in the encoders' dtype."""
        states = [self._memo.get(text, partial(self._encode, text)) for text in instructions]
        return torch.cat([prompt for prompt, _ in states]), torch.cat([pooled for _, pooled in states])

    def forget(self) -> None:
        """Forgets what was kept; called when the encoders move to another device."""
        self._memo.clear()

    @property
    def memo(self) -> TensorMemo:
        """What was kept."""
        return self._memo

    def _encode(self, text: str) -> tuple[Tensor, Tensor]:
        if not self._has_warned_of_cut:
            self._warn_if_cut(text)
        self._parts.fetch_text_encoders()
        with _quiet_pipeline_log():
            prompt, pooled, _ = self._pipeline.encode_prompt(prompt=[text], max_sequence_length=self._max_tokens)
        return prompt, pooled

    def _warn_if_cut(self, text: str) -> None:
        num_tokens = len(self._pipeline.tokenizer_2(text).input_ids)
        if num_tokens > self._max_tokens:
            self._has_warned_of_cut = True
            logger.warning(
                "An instruction has %d T5 tokens and is cut to backbone.max_text_tokens=%d (said once): %s",
                num_tokens,
                self._max_tokens,
                text,
            )


@contextmanager
def _quiet_pipeline_log() -> Iterator[None]:
    """Keeps the pipeline from warning of each instruction longer than CLIP's 77 tokens: that is harmless."""
    pipeline_log = logging.getLogger("diffusers.pipelines.flux.pipeline_flux_kontext")
    level = pipeline_log.level
    pipeline_log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        pipeline_log.setLevel(level)
