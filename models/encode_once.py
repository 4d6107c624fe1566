"""Letting a stock pipeline encode each picture that it is given once, however often it edits it.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from physedit.models.memo import TensorMemo


@contextmanager
def encoding_once(pipeline: Any, memo: TensorMemo) -> Iterator[None]:
    """Within the context the pipeline looks in ``memo`` before it encodes a picture, and keeps what it encodes there.

    Latents are its own, of the very pixels that it would encode: posterior modes, which need no generator.

    Args:
        pipeline: of diffusers, with ``_encode_vae_image``; has no types.
        memo: may be used for other things too.
    """
    encode = pipeline._encode_vae_image

    def kept(image: Tensor, generator: Any) -> Tensor:
        # Each alone, as the pipeline encodes them if each has a generator: as slices: convolutions round by strides.
        generators = generator if isinstance(generator, Sequence) else [generator] * len(image)
        found = [
            memo.get(_key(picture[0]), partial(_encoded, encode, picture, [each]))
            for picture, each in zip(torch.split(image, 1), generators, strict=True)
        ]
        return torch.cat([latents for (latents,) in found])

    pipeline._encode_vae_image = kept
    try:
        yield
    finally:
        del pipeline._encode_vae_image


def _encoded(encode: Any, image: Tensor, generators: list[Any]) -> tuple[Tensor]:
    return (encode(image=image, generator=generators),)


def _key(pixels: Tensor) -> str:
    """Returns what tells pixels as the VAE gets them, ``[C, ..., H, W]``, from all others."""
    plain = pixels.detach().cpu().contiguous()
    digest = hashlib.blake2b(plain.reshape(-1).view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
    return f"given {plain.dtype} {tuple(plain.shape)} {digest}"
