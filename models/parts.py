"""The parts of a stock pipeline: where they lie, what they are, and which denoiser the pipeline uses."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from physedit.models.loading import modules_of
from physedit.models.lora import unwrapped
from physedit.models.weights import RANDOM_TINY, hash_modules, name_weights

Encoders = Literal["resident", "offload", "absent"]
"""Where text encoders and VAE are: on the device, there while they are used, or (text encoders) not loaded at all."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DENOISER = "transformer"


class EncodersAbsentError(ValueError):
    """Something was to be encoded by encoders that were not loaded."""


class PipelineParts:
    """A frozen pipeline whose denoiser trains while its encoders and VAE only encode."""

    def __init__(self, pipeline: Any, weights: Path | str, dtype: torch.dtype, encoders: Encoders) -> None:
        """Takes a pipeline of diffusers as it lies on the CPU.

        Args:
            pipeline: with a ``transformer``, a ``vae`` and text encoders.
            weights: what it was read from.
            dtype: of its weights.
            encoders: see ``Encoders``.
        """
        self.pipeline = pipeline
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.denoiser: nn.Module = pipeline.transformer
        self._encoders = encoders
        self._are_fetched = encoders != "offload"
        self._weights = weights
        self._initial_hash = hash_modules(*modules_of(pipeline).values()) if weights == RANDOM_TINY else None

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the parts that encode text, loaded or not."""
        return tuple(name for name in self.pipeline.components if name.startswith("text_encoder"))

    def fingerprint(self, *settings: object) -> str:
        """Returns a hash of the base: file contents or hub commit, component classes, dtype and ``settings``.

        The first use reads all weight files of a local folder.
        """
        kinds = sorted((name, type(part).__name__) for name, part in self.pipeline.components.items())
        name = self._initial_hash or name_weights(self._weights)
        return hashlib.sha256(repr((name, kinds, str(self.dtype), *settings)).encode()).hexdigest()

    def to(self, device: torch.device) -> None:
        """Moves the denoiser, and resident encoders, to ``device``."""
        self.device = device
        self.denoiser.to(device)
        if self._encoders != "offload":
            self._move_encoders(device)

    def fetch_encoders(self) -> None:
        """Ensures that the encoders are on the device; called by whoever is about to encode.

        Raises:
            EncodersAbsentError: they were not loaded.
        """
        if self._encoders == "absent":
            raise EncodersAbsentError(
                "backbone.encoders=absent leaves out the text encoders, so no instruction can be encoded. Use an "
                "encoded cache of this data, or backbone.encoders=resident or offload."
            )
        if not self._are_fetched:
            self._move_encoders(self.device)
            self._are_fetched = True

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Within the context encoders stay where ``fetch_encoders`` brought them; offloaded ones leave after it."""
        try:
            yield
        finally:
            self._return_encoders()

    @contextmanager
    def editing_with(self, denoiser: nn.Module) -> Iterator[None]:
        """Within the context the pipeline edits with ``denoiser`` in evaluation mode, from text states that are given.

        Offloaded text encoders are out of the pipeline meanwhile, for it runs where its first part lies.
        """
        bare = unwrapped(denoiser)
        was_training = bare.training
        kept = {name: getattr(self.pipeline, name) for name in self.text_encoders}
        self.pipeline.transformer = bare.eval()
        if self._encoders == "offload":
            self._return_encoders()
            self.pipeline.vae.to(self.device)
            for name in kept:
                setattr(self.pipeline, name, None)
        try:
            yield
        finally:
            self.pipeline.transformer = self.denoiser
            for name, encoder in kept.items():
                setattr(self.pipeline, name, encoder)
            if self._encoders == "offload":
                self.pipeline.vae.to("cpu")
            bare.train(was_training)

    def _return_encoders(self) -> None:
        if self._encoders == "offload" and self._are_fetched:
            self._move_encoders(torch.device("cpu"))
            self._are_fetched = False

    def _move_encoders(self, device: torch.device) -> None:
        for name, part in modules_of(self.pipeline).items():
            if name != _DENOISER:
                part.to(device)


def checked_dtype(dtype: str) -> torch.dtype:
    """Returns the dtype of that name.

    Raises:
        ValueError: another than float32 or bfloat16.
    """
    if dtype not in DTYPES:
        raise ValueError(f"backbone.dtype is '{dtype}'; it must be one of {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def checked_encoders(encoders: str) -> Encoders:
    """Returns the placement of that name.

    Raises:
        ValueError: no such placement.
    """
    if encoders not in get_args(Encoders):
        raise ValueError(f"backbone.encoders is '{encoders}'; it must be one of {', '.join(get_args(Encoders))}.")
    return cast("Encoders", encoders)
