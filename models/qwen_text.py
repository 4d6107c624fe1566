"""Text states of instructions with pictures as the Qwen-Image-Edit pipelines make them, kept for the next time.

Shape legend: B batch, T text tokens, D width, H W pixels.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from physedit.data_loaders.geometry import as_image, resized
from physedit.models.memo import TensorMemo
from physedit.models.parts import PipelineParts
from physedit.models.pictures import picture_digest
from physedit.models.sizes import qwen_size

PROMPTS, MASK = "prompts", "mask"
_SHOWN = 60
_MEMO_BYTES = 2**28
"""About 25 instructions of the released v1, whose states take 9.5 MiB each in bfloat16, and 180 of Plus."""
POSITIONS = 4096
"""Of the transformer; text stands behind the largest half side of a picture. Source: QwenEmbedRope, diffusers."""


class InstructionError(ValueError):
    """An instruction that the editor cannot take."""


class QwenTextStates:
    """Encodes each instruction with its pictures alone, so that none depends on the rest of its batch."""

    def __init__(self, parts: PipelineParts, *, area_px: int, vision_area_px: int) -> None:
        """Encodes nothing yet.

        Args:
            parts: of a Qwen-Image-Edit pipeline, whose template, processor and text encoder are used.
            area_px: the area that pictures are worked at.
            vision_area_px: the area that the encoder sees a picture at.
        """
        self._parts = parts
        self._area_px, self._vision_area_px = area_px, vision_area_px
        self._memo = TensorMemo(_MEMO_BYTES)

    def states_of(self, given: Sequence[Sequence[Tensor]], instructions: Sequence[str]) -> Mapping[str, Tensor]:
        """Returns the states, right-padded with zeros: ``prompts`` ``[B, T, D]`` in the encoder's dtype.

        ``mask``, int64 ``[B, T]`` with 1 for a token and 0 for padding, is there only if some state is padded.

        Args:
            given: of each item the pictures that the encoder sees, uint8 ``[3, H, W]`` as stored.
            instructions: one an item.

        Raises:
            EncodersAbsentError: there is no text encoder.
            InstructionError: an instruction is too long, or has words of the template.
        """
        states: list[Tensor] = []
        for pictures, text in zip(given, instructions, strict=True):
            seen = self._seen(pictures)
            key = "\0".join((*map(picture_digest, seen), text))
            states += self._memo.get(key, partial(self._encode, seen, text))
        joined = padded(states)
        sides = [max(qwen_size(*each.shape[-2:], area_px=self._area_px)) for pictures in given for each in pictures]
        cell_px = 2 * int(self._parts.pipeline.vae_scale_factor)
        _check_room(joined, instructions, longest_side=max(sides) // cell_px)
        return joined

    def in_place_of_prompts(
        self, given: Sequence[Sequence[Tensor]], instructions: Sequence[str], negative_prompt: str | None
    ) -> dict[str, Tensor]:
        """Returns what the pipelines take in place of their prompts.

        Args:
            given: as for ``states_of``.
            instructions: one an item.
            negative_prompt: of all items; None for none.

        Raises:
            EncodersAbsentError, InstructionError: as ``states_of``.
        """
        texts: dict[str, Sequence[str]] = {"prompt": instructions}
        if negative_prompt is not None:
            texts["negative_prompt"] = [negative_prompt] * len(given)
        taken: dict[str, Tensor] = {}
        for name, prompts in texts.items():
            states = self.states_of(given, prompts)
            taken |= {f"{name}_embeds": states[PROMPTS], f"{name}_embeds_mask": full_mask(states)}
        return taken

    def forget(self) -> None:
        """Forgets what was kept; called when the encoder moves to another device."""
        self._memo.clear()

    @property
    def memo(self) -> TensorMemo:
        """What was kept."""
        return self._memo

    def _seen(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Returns the stored pictures of an item at the size that the encoder sees them."""
        return [resized(picture, *qwen_size(*picture.shape[-2:], area_px=self._vision_area_px)) for picture in pictures]

    def _encode(self, pictures: Sequence[Tensor], text: str) -> tuple[Tensor]:
        """Returns the states of one instruction, ``[T, D]``."""
        self._parts.fetch_text_encoders()
        # PIL pictures: the processor would rescale a tensor in 0..1 once more.
        images = [as_image(picture) for picture in pictures]
        try:
            prompts, _ = self._parts.pipeline.encode_prompt(prompt=[text], image=images, device=self._parts.device)
        except ValueError as error:
            raise InstructionError(
                f"The instruction {_shown(text)} cannot be encoded: {error} Take out words of the template, such as "
                "<|image_pad|>."
            ) from error
        return (prompts[0],)


def padded(states: Sequence[Tensor]) -> Mapping[str, Tensor]:
    """Returns states ``[T, D]`` of unlike lengths as ``QwenTextStates.states_of`` does. Pure.

    Source: QwenImageEditPipeline._get_qwen_prompt_embeds, diffusers; encode_prompt leaves out a mask of ones.
    """
    lengths = [len(state) for state in states]
    longest = max(lengths)
    prompts = torch.stack([F.pad(state, (0, 0, 0, longest - len(state))) for state in states])
    if min(lengths) == longest:
        return {PROMPTS: prompts}
    is_token = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    return {PROMPTS: prompts, MASK: is_token.long().to(prompts.device)}


def full_mask(text: Mapping[str, Tensor]) -> Tensor:
    """Returns the mask of ``states_of``'s result, of ones where there is none: the pipeline warns without one."""
    return text[MASK] if MASK in text else torch.ones_like(text[PROMPTS][..., 0], dtype=torch.long)


def _check_room(states: Mapping[str, Tensor], instructions: Sequence[str], *, longest_side: int) -> None:
    """Verifies that the transformer has a position for every token of each instruction and its pictures. Pure.

    Args:
        states: as ``padded`` returns them.
        instructions: that they are of.
        longest_side: the longest of any picture, in tokens.

    Raises:
        InstructionError: it has not.
    """
    lengths, room = full_mask(states).sum(dim=1).tolist(), POSITIONS - longest_side // 2
    longest = max(lengths)
    if longest > room:
        raise InstructionError(
            f"The instruction {_shown(instructions[lengths.index(longest)])} and its pictures make {longest} tokens, "
            f"but the transformer has positions for {room} of this size of picture. Shorten it."
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
