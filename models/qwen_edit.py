"""Drawing edits with the stock Qwen-Image-Edit pipelines, as many items at once as each of them takes.

Shape legend: B batch, H W pixels of a stored picture, h w pixels of an edit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from physedit.data_loaders.geometry import as_image
from physedit.models.pictures import as_bytes


def items_at_once(num_items: int, max_sources: int) -> list[slice]:
    """Returns which items are drawn together: all, or each alone by the pipeline of several pictures. Pure."""
    return [slice(None)] if max_sources == 1 else [slice(item, item + 1) for item in range(num_items)]


def draw(
    pipeline: Any,  # of diffusers, which has no types
    given: Sequence[Sequence[Tensor]],
    texts: Sequence[Mapping[str, Tensor]],
    generators: Sequence[torch.Generator],
    *,
    together: Sequence[slice],
    size: tuple[int, int],
    num_steps: int,
    guidance: float,
) -> Tensor:
    """Returns the edits, uint8 ``[B, 3, h, w]`` on the CPU.

    Args:
        pipeline: within ``working_at`` and ``PipelineParts.editing_with``.
        given: of each item its source and further references, uint8 ``[3, H, W]``.
        texts: of the items of each of ``together``, what the pipeline takes in place of prompts.
        generators: one CPU generator an item.
        together: which items are drawn at once; see ``items_at_once``.
        size: height and width of the edits.
        num_steps: denoising steps.
        guidance: the true guidance.

    Raises:
        NotFiniteEditError: an edit is no picture.
    """
    height, width = size
    edited = []
    for items, text in zip(together, texts, strict=True):
        pictures: Tensor = pipeline(
            image=[as_image(picture) for pictures in given[items] for picture in pictures],
            height=height,
            width=width,
            num_inference_steps=num_steps,
            true_cfg_scale=guidance,
            generator=list(generators[items]),
            output_type="pt",
            **text,
        ).images
        edited.append(as_bytes(pictures))
    return torch.cat(edited)
