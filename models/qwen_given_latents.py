"""Letting the stock Qwen-Image-Edit pipelines take latents that are there already in place of encoding pictures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def encoding_to(pipeline: Any, latents: Sequence[Tensor]) -> Iterator[None]:
    """Within the context the pipeline's next call gets ``latents``, one for each picture it would encode.

    The pipelines look at the sizes of pictures that they are given, so latents cannot be given in their place.

    Args:
        pipeline: of diffusers; has no types.
        latents: ``[B, C, h, w]`` in the pipeline's order of pictures, normalised.
    """
    waiting = iter(latents)

    def given(image: Tensor, generator: object) -> Tensor:  # noqa: ARG001 - as the pipeline calls it
        return next(waiting).unsqueeze(2)  # [B, C, 1, h, w]: one frame

    pipeline._encode_vae_image = given
    try:
        yield
    finally:
        del pipeline._encode_vae_image
