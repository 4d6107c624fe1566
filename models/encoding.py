"""Encoded pictures and instructions of single pairs: the halves of a conditioning, as they can be kept.

Shape legend: B batch, C latent channels, h w latent cells.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from physedit.data_loaders.sample import PictureSizeError
from physedit.models.latents import on_device

EncoderKind = Literal["pictures", "text"]
"""What encodes pictures (the VAE), and what encodes instructions (the text encoders)."""


@dataclass(frozen=True, slots=True)
class Latents:
    """Encoded pictures.

    Attributes:
        target: ``[B, C, h, w]``, normalised latents of the target pictures, in the base's dtype.
        sources: of the source first, then of further references; each ``[B, C, h', w']`` with its own h', w'.
        change: ``[B, 1, h, w]`` float32 in 0..1, how much of each target cell's pixels the edit changes.
        time_shift: the pipeline's own ``mu`` for the target's size.
    """

    target: Tensor
    sources: tuple[Tensor, ...]
    change: Tensor
    time_shift: float


class EncoderSet(Protocol):
    """The encoders of a backbone: where they lie, and for how long."""

    def encoding(self) -> AbstractContextManager[None]:
        """Within the context encoders that are offloaded stay on the device once they were used."""
        ...

    def offload(self, kinds: Collection[EncoderKind]) -> None:
        """Keeps these encoders on the CPU from now on, but for while they are used."""
        ...

    def drop(self, kinds: Collection[EncoderKind]) -> None:
        """Lets go of these encoders for good; what needs them raises ``EncodersAbsentError`` from now on."""
        ...


def joined_latents(parts: Sequence[Latents]) -> Latents:
    """Returns the latents of several batches as one.

    Raises:
        PictureSizeError: they are not of the same sizes, or numbers of pictures.
    """
    sizes = {tuple(picture.shape[1:] for picture in (part.target, *part.sources)) for part in parts}
    if len(sizes) > 1:
        raise PictureSizeError(
            "A batch needs pairs that are edited at one size with equally many references, but pairs of this one have "
            f"latents of {' and '.join(str([tuple(shape) for shape in each]) for each in sorted(sizes))}. Set "
            "micro_batch=1."
        )
    return Latents(
        target=torch.cat([part.target for part in parts]),
        sources=tuple(torch.cat(sources) for sources in zip(*(part.sources for part in parts), strict=True)),
        change=torch.cat([part.change for part in parts]),
        time_shift=parts[0].time_shift,
    )


def latents_as_tensors(latents: Latents) -> dict[str, Tensor]:
    """Returns the latents as tensors by name, from which ``latents_from_tensors`` makes them again."""
    sources = {f"source_{number}": source for number, source in enumerate(latents.sources)}
    time_shift = torch.tensor(latents.time_shift, dtype=torch.float64)
    return {"target": latents.target, **sources, "change": latents.change, "time_shift": time_shift}


def latents_from_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> Latents:
    """Returns what ``latents_as_tensors`` was given, on ``device``."""
    num_sources = sum(name.startswith("source_") for name in tensors)
    return Latents(
        target=on_device(tensors["target"], device),
        sources=tuple(on_device(tensors[f"source_{number}"], device) for number in range(num_sources)),
        change=on_device(tensors["change"], device),
        time_shift=float(tensors["time_shift"]),
    )
