"""Stored pictures of a batch, brought to the sizes that an editor works at.

Shape legend: B batch, H W pixels of a stored picture, h w pixels it is worked at.
"""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from physedit.data_loaders.geometry import fitted_target, resized
from physedit.data_loaders.sample import EditBatch, PictureSizeError

SizeRule = Callable[[int, int], tuple[int, int]]
"""From height and width of a stored picture to those it is worked at; see ``Backbone.working_size``."""


def working_sizes(
    given: Sequence[Sequence[Tensor]], names: Sequence[str], size_of: SizeRule, *, max_sources: int
) -> tuple[tuple[int, int], ...]:
    """Returns the working size of the sources, and of each further reference, that all items of a batch share.

    Args:
        given: of each item its source and references, uint8 ``[3, H, W]``.
        names: of the items, for the messages.
        size_of: the size rule.
        max_sources: how many pictures an item may give.

    Raises:
        PictureSizeError: the items' sizes differ, or an item gives too many pictures.
    """
    most = max(len(pictures) for pictures in given)
    if most > max_sources:
        name = names[[len(pictures) for pictures in given].index(most)]
        raise PictureSizeError(
            f"{name} gives {most} pictures to edit from, but this editor takes {max_sources}. Drop the references, or "
            "use backbone=qwen_image_edit_plus, which takes three."
        )
    sizes = [tuple(size_of(*picture.shape[-2:]) for picture in pictures) for pictures in given]
    for name, other in zip(names, sizes, strict=True):
        if other != sizes[0]:
            raise PictureSizeError(
                f"A batch needs pictures of one working size, but {names[0]} is worked at {_shown(sizes[0])} and "
                f"{name} at {_shown(other)}. Set micro_batch=1."
            )
    return sizes[0]


def stacked_sources(given: Sequence[Sequence[Tensor]], sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Returns the sources, then each further reference, stretched to its size: uint8 ``[B, 3, h, w]`` each."""
    return tuple(
        torch.stack([resized(pictures[place], *size) for pictures in given]) for place, size in enumerate(sizes)
    )


def stacked_targets(batch: EditBatch, size: tuple[int, int]) -> Tensor:
    """Returns the targets fitted to the sources' working size, uint8 ``[B, 3, h, w]``."""
    pairs = zip(batch.targets, batch.sources, strict=True)
    return torch.stack([fitted_target(target, source, *size) for target, source in pairs])


def _shown(sizes: Sequence[tuple[int, int]]) -> str:
    return " + ".join(f"{width}x{height}" for height, width in sizes)


def picture_digest(picture: Tensor) -> str:
    """Returns what tells a uint8 picture ``[3, H, W]`` from every other."""
    pixels = picture.cpu().contiguous().numpy()
    return f"{pixels.shape}/{hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()}"
