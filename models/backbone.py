"""The seam between an image editor and everything that trains or evaluates it.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells, T text tokens, D width.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from physedit.data_loaders.encoded import EncodedBatch
from physedit.data_loaders.sample import EditBatch
from physedit.models.adapter_file import AdapterFormat
from physedit.models.encoding import EncoderSet, Latents, joined_latents, latents_from_tensors
from physedit.models.latents import on_device
from physedit.models.outline import Outline
from physedit.models.sizes import PictureSizes

LORA_PRESET_NAMES = ("attention", "attention_mlp", "image_stream", "all_linear")
"""The presets every backbone offers."""


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Everything a training step needs of a batch, without gradient.

    Attributes:
        target: ``[B, C, h, w]`` float32, normalised latents of the target pictures (x_0).
        sources: normalised latents of the pictures that the edit starts from, the source first, then further
            references; each ``[B, C, h', w']`` float32 with its own h', w'.
        text: encoded instructions by the backbone's own names, each ``[B, ...]``.
        change: ``[B, 1, h, w]`` float32 in 0..1, how much of each target cell's pixels the edit changes.
        time_shift: the pipeline's own ``mu`` for the target's size; sigma is shifted by ``exp(mu)``.
    """

    target: Tensor
    sources: tuple[Tensor, ...]
    text: Mapping[str, Tensor]
    change: Tensor
    time_shift: float


def join(latents: Latents, text: Mapping[str, Tensor]) -> Conditioning:
    """Returns the conditioning that encoded pictures and encoded instructions of the same pairs make. Pure."""
    return Conditioning(
        target=latents.target.float(),
        sources=tuple(source.float() for source in latents.sources),
        text=text,
        change=latents.change,
        time_shift=latents.time_shift,
    )


def conditioning_of(backbone: "Backbone", batch: EditBatch | EncodedBatch, device: torch.device) -> Conditioning:
    """Returns what ``backbone.encode`` makes of a batch, from what was kept of it if it is encoded already.

    Args:
        backbone: whose own encoded pairs these are.
        batch: pictures, or encoded pairs.
        device: where the conditioning of encoded pairs is to be.

    Raises:
        PictureSizeError: pictures of the batch are edited at unlike sizes, or are too many.
    """
    if isinstance(batch, EditBatch):
        return backbone.encode(batch)
    latents = joined_latents([latents_from_tensors(tensors, device) for tensors in batch.latents])
    if batch.texts:
        kept = [{name: on_device(value, device) for name, value in text.items()} for text in batch.texts]
        return join(latents, backbone.join_text(kept))
    return join(latents, backbone.encode_text(batch.given, batch.instructions))


class Backbone(Protocol):
    """An instruction-driven image editor whose denoiser can be fine-tuned.

    The denoiser is an argument of ``velocity`` and ``edit``, so that a wrapped module (DDP, DeepSpeed) can be
    passed; ``denoiser`` is the bare module.
    """

    @staticmethod
    def check_weights(weights: str) -> None:
        """Verifies that ``weights`` can be opened, without loading anything; called before a run begins.

        Raises:
            ValueError: no such weights; the message names what was looked for and the remedy.
        """
        ...

    @staticmethod
    def outline(settings: Mapping[str, object]) -> Outline:
        """Returns size rule, number of pictures and limits of instructions, without loading a weight.

        Args:
            settings: the constructor's arguments by name; those that it has defaults for may be left out.

        Raises:
            ValueError: no such weights, an area out of range, or a tokenizer that cannot be loaded.
        """
        ...

    @property
    def denoiser(self) -> nn.Module:
        """The module that trains, with every base weight frozen."""
        ...

    @property
    def max_sources(self) -> int:
        """How many pictures an edit can start from: the source and further references."""
        ...

    @property
    def default_guidance(self) -> float:
        """The guidance scale that an edit uses unless another is asked for."""
        ...

    @property
    def default_num_steps(self) -> int:
        """The number of denoising steps of an edit unless another is asked for."""
        ...

    def sizes_of(self, height: int, width: int) -> PictureSizes:
        """Returns the sizes at which a stored picture of ``height`` and ``width`` is edited. Pure.

        The one size rule: a source is stretched to ``source``; its target is fitted to ``output``, in which its edit
        comes out.

        Raises:
            PictureSizeError: the picture is too long and narrow.
        """
        ...

    @property
    def lora_presets(self) -> Mapping[str, tuple[str, ...]]:
        """Regular expressions over module names, by preset; the keys are ``LORA_PRESET_NAMES``."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of everything in the base that changes an edit: weights, classes, dtype."""
        ...

    @property
    def encoding_key(self) -> str:
        """A hash of everything in the base that decides what ``encode_pictures`` and ``encode_text`` return.

        That is weights and dtype of the encoders, size rule and template; not the denoiser, nor how edits are guided.
        """
        ...

    @property
    def text_sees_pictures(self) -> bool:
        """True if what ``encode_text`` returns depends on the pictures."""
        ...

    def to(self, device: torch.device) -> None:
        """Moves every part of the editor to ``device``."""
        ...

    def encode(self, batch: EditBatch) -> Conditioning:
        """Encodes pictures and instructions as the stock pipeline would; no gradient.

        It is ``join`` of ``encode_pictures`` and ``encode_text``, of which no item depends on the rest of its batch.

        Raises:
            PictureSizeError: pictures of the batch are edited at unlike sizes, or are too many.
        """
        ...

    def encode_pictures(self, batch: EditBatch) -> Latents:
        """Encodes the pictures alone; ``joined_latents`` of single pairs is the same, bit for bit.

        Raises:
            PictureSizeError: as ``encode``.
        """
        ...

    def encode_text(self, given: Sequence[Sequence[Tensor]], instructions: Sequence[str]) -> Mapping[str, Tensor]:
        """Encodes the instructions alone; ``join_text`` of single items is the same, bit for bit.

        Args:
            given: as in ``edit``; empty if the text does not see pictures.
            instructions: one an item.
        """
        ...

    def join_text(self, texts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Returns what ``encode_text`` gives for several items, from what it gave for each alone. Pure."""
        ...

    @property
    def encoders(self) -> EncoderSet:
        """What encodes, to be kept elsewhere or let go."""
        ...

    def forget(self) -> None:
        """Drops encoded pictures and instructions that are kept; ``encode`` makes them anew."""
        ...

    def keeping_encoded(self, folder: Path) -> AbstractContextManager[None]:
        """Within the context what is encoded, by edits too, is kept below ``folder`` and taken from there.

        Processes, and later runs of the same editor, may share the folder; no bit of an edit depends on it.
        """
        ...

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """Predicts n - x_0, float32 ``[B, C, h, w]``, from what the stock pipeline would pass at this sigma.

        Args:
            denoiser: the denoiser, possibly wrapped.
            noisy: ``[B, C, h, w]`` float32, (1 - sigma) x_0 + sigma n.
            sigma: ``[B]`` float32; the time is derived from it as the pipeline derives it from the schedule.
            conditioning: what ``encode`` returned.
        """
        ...

    def edit(
        self,
        denoiser: nn.Module,
        given: Sequence[Sequence[Tensor]],
        instructions: Sequence[str],
        *,
        num_steps: int,
        guidance: float,
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        """Edits with the stock diffusers pipeline; returns uint8 ``[B, 3, h, w]`` of the sources' output size.

        One CPU generator an item draws its noise, so a picture does not depend on its batch.

        Args:
            denoiser: the denoiser, possibly wrapped; in evaluation mode during the call.
            given: of each item the source and further references, uint8 ``[3, H, W]`` as stored.
            instructions: one an item.
            num_steps: denoising steps.
            guidance: the pipeline's guidance scale.
            generators: one an item.

        Raises:
            PictureSizeError: as ``encode``.
            NotFiniteEditError: the edit is no picture.
        """
        ...

    def save_adapter(self, state: Mapping[str, Tensor], folder: str, adapter_format: AdapterFormat) -> None:
        """Writes adapter tensors (peft names) as diffusers LoRA safetensors that the stock pipeline loads."""
        ...
