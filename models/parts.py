"""The parts of a stock pipeline: where they lie, what they are, and which denoiser the pipeline uses."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from physedit.models.loading import modules_of
from physedit.models.lora import unwrapped
from physedit.models.quantization import Quantization
from physedit.models.weights import RANDOM_TINY, hash_modules, name_weights

Encoders = Literal["resident", "offload", "absent"]
"""Where text encoders and VAE are: on the device, there while they are used, or (text encoders) not loaded at all."""
CompileBackend = Literal["inductor", "aot_eager"]
"""A backend of torch.compile: the one that generates code, or one that only traces, to tell their faults apart."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_VAE = "vae"


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What a backbone trades for memory or time.

    Attributes:
        encoders: where text encoders and VAE are.
        quantization: of the transformer's linear layers; None keeps them in the base's dtype.
        gradient_checkpointing: recompute each block of the transformer in the backward pass.
        compile_blocks: the backend that the transformer's repeated blocks are compiled with; None leaves them as they
            are.

    Raises:
        ValueError: no such placement or backend.
    """

    encoders: Encoders
    quantization: Quantization | None
    gradient_checkpointing: bool
    compile_blocks: CompileBackend | None

    def __post_init__(self) -> None:
        if self.encoders not in get_args(Encoders):
            raise ValueError(
                f"backbone.encoders is '{self.encoders}'; it must be one of {', '.join(get_args(Encoders))}."
            )
        if self.compile_blocks is not None and self.compile_blocks not in get_args(CompileBackend):
            raise ValueError(
                f"backbone.compile_blocks is '{self.compile_blocks}'; it must be null or one of "
                f"{', '.join(get_args(CompileBackend))}."
            )


class EncodersAbsentError(ValueError):
    """Something was to be encoded by encoders that were not loaded."""


class PipelineParts:
    """A frozen pipeline whose denoiser trains while its encoders and VAE only encode."""

    def __init__(self, pipeline: Any, weights: Path | str, dtype: torch.dtype, memory: MemorySettings) -> None:
        """Takes a pipeline of diffusers as it was loaded.

        Args:
            pipeline: with a ``transformer``, a ``vae`` and text encoders.
            weights: what it was read from.
            dtype: of its weights.
            memory: what is traded; compiled blocks take in adapters that are added later.
        """
        self.pipeline = pipeline
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.denoiser: nn.Module = pipeline.transformer
        self._memory = memory
        self._offloads = memory.encoders == "offload"
        self._fetched: set[str] = set()
        self._weights = weights
        self._initial_hash = hash_modules(*modules_of(pipeline).values()) if weights == RANDOM_TINY else None
        if memory.encoders == "absent":
            for name in self.text_encoders:
                setattr(pipeline, name, None)
        if memory.gradient_checkpointing:
            pipeline.transformer.enable_gradient_checkpointing(_checkpointed)
        if memory.compile_blocks is not None:
            pipeline.transformer.compile_repeated_blocks(backend=memory.compile_blocks)

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the parts that encode text, loaded or not."""
        return tuple(name for name in self.pipeline.components if name.startswith("text_encoder"))

    def fingerprint(self, *settings: object) -> str:
        """Returns a hash of the base: file contents or hub commit, component classes, dtype and ``settings``.

        Quantisation and compilation count too, for they round otherwise; where the encoders are does not. The first
        use reads all weight files of a local folder.
        """
        parts = {name: part for name, part in self.pipeline.components.items() if name not in self.text_encoders}
        kinds = sorted((name, type(part).__name__) for name, part in parts.items())
        name = self._initial_hash or name_weights(self._weights)
        rounding = (self._memory.quantization, self._memory.compile_blocks)
        return hashlib.sha256(repr((name, kinds, str(self.dtype), *rounding, *settings)).encode()).hexdigest()

    def to(self, device: torch.device) -> None:
        """Moves the denoiser, and resident encoders, to ``device``."""
        self.device = device
        self.denoiser.to(device)
        if not self._offloads:
            self._move((*self.text_encoders, _VAE), device)

    def fetch_text_encoders(self) -> None:
        """Ensures that the text encoders are on the device; called by whoever is about to encode text.

        Raises:
            EncodersAbsentError: they were not loaded.
        """
        if self._memory.encoders == "absent":
            raise EncodersAbsentError(
                "backbone.encoders=absent leaves out the text encoders, so no instruction can be encoded. Use an "
                "encoded cache of this data, or backbone.encoders=resident or offload."
            )
        self._fetch(self.text_encoders)

    def fetch_vae(self) -> None:
        """Ensures that the VAE is on the device; called by whoever is about to encode pictures."""
        self._fetch((_VAE,))

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Within the context encoders stay where they were fetched to; offloaded ones leave after it."""
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
        kept = {name: getattr(self.pipeline, name) for name in self.text_encoders} if self._offloads else {}
        self.pipeline.transformer = bare.eval()
        self.fetch_vae()
        for name in kept:
            setattr(self.pipeline, name, None)
        try:
            yield
        finally:
            self.pipeline.transformer = self.denoiser
            for name, encoder in kept.items():
                setattr(self.pipeline, name, encoder)
            self._return_encoders()
            bare.train(was_training)

    def _fetch(self, names: tuple[str, ...]) -> None:
        if self._offloads and not self._fetched.issuperset(names):
            self._move(names, self.device)
            self._fetched.update(names)

    def _return_encoders(self) -> None:
        self._move(tuple(self._fetched), torch.device("cpu"))
        self._fetched.clear()

    def _move(self, names: tuple[str, ...], device: torch.device) -> None:
        for name, part in modules_of(self.pipeline).items():
            if name in names:
                part.to(device)


def checked_dtype(dtype: str) -> torch.dtype:
    """Returns the dtype of that name.

    Raises:
        ValueError: another than float32 or bfloat16.
    """
    if dtype not in DTYPES:
        raise ValueError(f"backbone.dtype is '{dtype}'; it must be one of {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _checkpointed(block: nn.Module, *inputs: Any) -> Any:  # what a block takes and returns is its own
    """Calls ``block``, whose inner values the backward pass computes again.

    The re-entrant form gives no gradient to adapters in a frozen base: their block's inputs need none.
    """
    return checkpoint(block, *inputs, use_reentrant=False)
