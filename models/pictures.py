"""Stored pictures of a batch, brought to the sizes that an editor works at.

Shape legend: B batch, H W pixels of a stored picture, h w pixels it is worked at.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from physedit.data_loaders.geometry import fitted_target, resized
from physedit.data_loaders.sample import EditBatch, PictureSizeError
from physedit.models.sizes import PictureSizes

SizeRule = Callable[[int, int], PictureSizes]
"""From height and width of a stored picture to its sizes; see ``Backbone.sizes_of``."""


class NotFiniteEditError(ValueError):
    """An edit came out with pixels that are not numbers."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Heights and widths that all items of a batch share: of each picture to edit from, and of the edit."""

    sources: tuple[tuple[int, int], ...]
    output: tuple[int, int]

    def __str__(self) -> str:
        given = " + ".join(_shown(size) for size in self.sources)
        return f"from {given} to {_shown(self.output)}"


def batch_sizes(
    given: Sequence[Sequence[Tensor]], names: Sequence[str], sizes_of: SizeRule, *, max_sources: int
) -> BatchSizes:
    """Returns the sizes that the items share; the first picture of an item, its source, decides those of its edit.

    Args:
        given: of each item its source and references, uint8 ``[3, H, W]``.
        names: of the items, for the messages.
        sizes_of: the size rule.
        max_sources: how many pictures an item may give.

    Raises:
        PictureSizeError: the items' sizes differ, or an item gives too many pictures or one that is too narrow.
    """
    most = max(len(pictures) for pictures in given)
    if most > max_sources:
        name = names[[len(pictures) for pictures in given].index(most)]
        raise PictureSizeError(
            f"{name} gives {most} pictures to edit from, but this editor takes {max_sources}. Drop the references, or "
            "use backbone=qwen_image_edit_plus, which takes three."
        )
    found = [_sizes_of_item(pictures, name, sizes_of) for pictures, name in zip(given, names, strict=True)]
    for name, other in zip(names, found, strict=True):
        if other != found[0]:
            raise PictureSizeError(
                f"A batch needs pictures that are edited at one size, but {names[0]} is edited {found[0]} and {name} "
                f"{other} (width x height). Set micro_batch=1."
            )
    return found[0]


def stacked(pictures: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Returns pictures ``[3, H, W]`` stretched to one size, uint8 ``[B, 3, h, w]``."""
    return torch.stack([resized(picture, *size) for picture in pictures])


def stacked_sources(given: Sequence[Sequence[Tensor]], sizes: BatchSizes) -> tuple[Tensor, ...]:
    """Returns the sources, then each further reference, stretched to their size: uint8 ``[B, 3, h, w]`` each."""
    return tuple(
        stacked(pictures, size) for pictures, size in zip(zip(*given, strict=True), sizes.sources, strict=True)
    )


def stacked_targets(batch: EditBatch, sizes: BatchSizes) -> Tensor:
    """Returns the targets fitted to the size of their edits, uint8 ``[B, 3, h, w]``."""
    pairs = zip(batch.targets, batch.sources, strict=True)
    return torch.stack([fitted_target(target, source, *sizes.output) for target, source in pairs])


def as_bytes(edited: Tensor) -> Tensor:
    """Returns what a pipeline drew, ``[B, 3, h, w]`` in 0..1, as uint8 on the CPU.

    Raises:
        NotFiniteEditError: a pixel is not a number, which uint8 would show as black.
    """
    pixels = edited.float()
    if not bool(torch.isfinite(pixels).all()):
        raise NotFiniteEditError(
            "The editor drew pixels that are not numbers: its weights, its adapter or its guidance are out of range. "
            "Use an adapter and weights whose values are finite, or a smaller guidance."
        )
    return (pixels * 255).round().to("cpu", torch.uint8)


def _sizes_of_item(pictures: Sequence[Tensor], name: str, sizes_of: SizeRule) -> BatchSizes:
    try:
        found = [sizes_of(*picture.shape[-2:]) for picture in pictures]
    except PictureSizeError as error:
        raise PictureSizeError(f"{name}: {error}") from error
    return BatchSizes(tuple(sizes.source for sizes in found), found[0].output)


def _shown(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"


def picture_digest(picture: Tensor) -> str:
    """Returns what tells a uint8 picture ``[3, H, W]`` from every other."""
    pixels = picture.cpu().contiguous().numpy()
    return f"{pixels.shape}/{hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()}"
