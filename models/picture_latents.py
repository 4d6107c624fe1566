"""Latents of stored pictures, each encoded alone and kept for the next time.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from physedit.data_loaders.sample import EditBatch
from physedit.models.encoding import Latents
from physedit.models.latents import changed_share, time_shift
from physedit.models.memo import TensorMemo
from physedit.models.parts import PipelineParts
from physedit.models.pictures import BatchSizes, picture_digest, stacked, stacked_sources, stacked_targets

_MEMO_BYTES = 2**28
"""Latents of so many pictures stay on the device: a small data set is encoded once, a large one as it comes."""


class PictureLatents:
    """Encodes each picture alone, so that none depends on the rest of its batch."""

    def __init__(self, parts: PipelineParts, encode: Callable[[PipelineParts, Tensor], Tensor]) -> None:
        """Encodes nothing yet.

        Args:
            parts: of the pipeline whose VAE is used.
            encode: from a picture, uint8 ``[3, H, W]``, its normalised latents ``[1, C, h, w]`` in the base's dtype.
        """
        self._parts = parts
        self._encode = encode
        self.memo = TensorMemo(_MEMO_BYTES)

    def of_batch(self, batch: EditBatch, sizes: BatchSizes) -> Latents:
        """Returns the latents of a batch whose pictures share ``sizes``.

        Raises:
            EncodersAbsentError: the VAE was dropped.
        """
        sources, targets = stacked_sources(batch.given, sizes), stacked_targets(batch, sizes)
        with self._parts.encoding():
            target = self.of(targets)
            latents = tuple(self.of(pictures) for pictures in sources)
        height, width = target.shape[-2:]
        pipeline, before = self._parts.pipeline, stacked(batch.sources, sizes.output)
        return Latents(
            target=target,
            sources=latents,
            change=changed_share(before, targets, pipeline.vae_scale_factor).to(target.device),
            time_shift=time_shift(pipeline.scheduler, num_tokens=(height // 2) * (width // 2)),
        )

    def of(self, pictures: Tensor) -> Tensor:
        """Returns the latents ``[B, C, h, w]`` of pictures, uint8 ``[B, 3, H, W]`` at the size they are worked at."""
        kept = [self.memo.get(picture_digest(picture), partial(self._make, picture)) for picture in pictures]
        # Contiguous, as a stored copy is: sums over other strides round otherwise.
        return torch.cat([latents for (latents,) in kept]).contiguous()

    def _make(self, picture: Tensor) -> tuple[Tensor]:
        self._parts.fetch_vae()
        return (self._encode(self._parts, picture),)
