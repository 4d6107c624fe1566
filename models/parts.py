"""The parts of a stock pipeline: where they lie, what they are, and which denoiser the pipeline uses."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from physedit.models.attention import check_attention, set_attention
from physedit.models.blocks import CompileBackend, check_backend, checked_checkpointing, compile_blocks, recompute_every
from physedit.models.encode_once import encoding_once
from physedit.models.encoding import EncoderKind
from physedit.models.loading import modules_of
from physedit.models.lora import unwrapped
from physedit.models.memo import TensorMemo, TensorShelf
from physedit.models.pipeline_folder import INDEX
from physedit.models.quantization import Quantization, check_compiling
from physedit.models.weights import RANDOM_TINY, hash_modules, name_weights

Encoders = Literal["resident", "offload", "absent"]
"""Where text encoders and VAE are: on the device, there while they are used, or (text encoders) not loaded at all."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ENCODING_VERSION = 1
"""Raised when the same pictures and instructions would be encoded otherwise; encoded caches of before do not count."""
MOST_STEPS = 1000
"""Source: ``num_train_timesteps`` of the released schedulers, diffusers."""
_VAE = "vae"
_FOLDER_LETTERS = 32
_DENOISER = "transformer"


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What a backbone trades for memory or time.

    Attributes:
        encoders: where text encoders and VAE are.
        quantization: of the transformer's linear layers; None keeps them in the base's dtype.
        gradient_checkpointing: whether the backward pass computes the transformer's blocks again, or n for the first
            of every n of them.
        compile_blocks: the backend that compiles the transformer's repeated blocks; None leaves them as they are.
        attention: the kernels of its attention, as ``check_attention`` took them; None for diffusers' own choice.

    Raises:
        ValueError: no such placement, share of blocks or backend, or one that cannot compile this quantisation or here.
    """

    encoders: Encoders
    quantization: Quantization | None
    gradient_checkpointing: bool | int
    compile_blocks: CompileBackend | None
    attention: str | None = None

    def __post_init__(self) -> None:
        if self.encoders not in get_args(Encoders):
            raise ValueError(
                f"backbone.encoders is '{self.encoders}'; it must be one of {', '.join(get_args(Encoders))}."
            )
        checked_checkpointing(self.gradient_checkpointing)
        check_backend(self.compile_blocks)
        check_compiling(self.quantization, self.compile_blocks)


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
        self._offloaded = {*self.text_encoders, _VAE} if memory.encoders == "offload" else set()
        self._fetched: set[str] = set()
        self._num_encoding = 0
        self._weights = weights
        self._kinds = _kinds(pipeline, but=self.text_encoders)
        self._initial_hashes = _hash_random(pipeline) if weights == RANDOM_TINY else None
        if memory.encoders == "absent":
            for name in self.text_encoders:
                setattr(pipeline, name, None)
        recompute_every(self.denoiser, memory.gradient_checkpointing)
        if memory.attention is not None:
            set_attention(self.denoiser, memory.attention)
        if memory.compile_blocks is not None:
            compile_blocks(self.denoiser, memory.compile_blocks)

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the parts that encode text, loaded or not."""
        return tuple(name for name in self.pipeline.components if name.startswith("text_encoder"))

    def fingerprint(self, *settings: object) -> str:
        """Returns a hash of the base: file contents or hub commit, component classes, dtype and ``settings``.

        Quantisation, compilation and attention kernels count too, for they round otherwise; where the encoders are
        does not. The first use reads all weight files of a local folder.
        """
        name = self._initial_hashes[0] if self._initial_hashes else name_weights(self._weights)
        kernels = () if self._memory.attention is None else (("attention", self._memory.attention),)
        rounding = (self._memory.quantization, self._memory.compile_blocks, *kernels, *self._products)
        return _hash(name, self._kinds, str(self.dtype), *rounding, *settings)

    def encoding_key(self, *settings: object) -> str:
        """Returns a hash of what encodes: all parts but the denoiser, their dtype, and ``settings``.

        The first use reads the encoders' weight files of a local folder.
        """
        if self._initial_hashes:
            name = self._initial_hashes[1]
        else:
            name = name_weights(self._weights, {INDEX, *self.pipeline.components} - {_DENOISER})
        return _hash(ENCODING_VERSION, name, str(self.dtype), *self._products, *settings)

    @property
    def _products(self) -> tuple[str, ...]:
        """What the base's own products are rounded to, where that is not their dtype."""
        precision = torch.get_float32_matmul_precision()
        return () if self.dtype != torch.float32 or precision == "highest" else (precision,)

    @contextmanager
    def keeping(self, folder: Path, encoding_key: str, memos: Mapping[str, TensorMemo]) -> Iterator[None]:
        """Within the context what the memos keep is kept below ``folder`` too, and taken from there.

        What was encoded with another key, torch or device is never taken.
        """
        on_gpu = self.device.type == "cuda"
        device_name = torch.cuda.get_device_name(self.device) if on_gpu else self.device.type
        place = folder / _hash(encoding_key, torch.__version__, device_name)[:_FOLDER_LETTERS]
        with ExitStack() as shelves:
            for name, memo in memos.items():
                shelves.enter_context(memo.shelved(TensorShelf(place / name, self.device)))
            yield

    def to(self, device: torch.device) -> None:
        """Moves the denoiser, and resident encoders, to ``device``."""
        self.device = device
        self.denoiser.to(device)
        self._move({*self.text_encoders, _VAE} - self._offloaded, device)

    def fetch_text_encoders(self) -> None:
        """Ensures that the text encoders are on the device; called by whoever is about to encode text.

        Raises:
            EncodersAbsentError: they were not loaded, or dropped.
        """
        self._fetch(self.text_encoders)

    def fetch_vae(self) -> None:
        """Ensures that the VAE is on the device; called by whoever is about to encode pictures.

        Raises:
            EncodersAbsentError: it was dropped.
        """
        self._fetch((_VAE,))

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Within the context encoders stay where they were fetched to; offloaded ones leave after the outermost."""
        self._num_encoding += 1
        try:
            yield
        finally:
            self._num_encoding -= 1
            self._return_encoders()

    def offload(self, kinds: Collection[EncoderKind]) -> None:
        """Keeps these encoders on the CPU from now on, but for while they are used."""
        names = self._names_of(kinds)
        self._offloaded.update(names)
        self._move(names, torch.device("cpu"))

    def drop(self, kinds: Collection[EncoderKind]) -> None:
        """Lets go of these encoders; whoever needs them meets an ``EncodersAbsentError`` from now on."""
        for name in self._names_of(kinds):
            setattr(self.pipeline, name, None)

    @contextmanager
    def editing_with(self, denoiser: nn.Module, memo: TensorMemo) -> Iterator[None]:
        """Within the context the pipeline edits with ``denoiser`` in evaluation mode, from text states that are given.

        Offloaded text encoders are out of the pipeline meanwhile, for it runs where its first part lies. Pictures that
        it has encoded before it finds in ``memo``.
        """
        bare = unwrapped(denoiser)
        was_training = bare.training
        kept = {name: getattr(self.pipeline, name) for name in self.text_encoders if name in self._offloaded}
        self.pipeline.transformer = bare.eval()
        self.fetch_vae()
        for name in kept:
            setattr(self.pipeline, name, None)
        try:
            with encoding_once(self.pipeline, memo):
                yield
        finally:
            self.pipeline.transformer = self.denoiser
            for name, encoder in kept.items():
                setattr(self.pipeline, name, encoder)
            self._return_encoders()
            bare.train(was_training)

    def _names_of(self, kinds: Collection[EncoderKind]) -> tuple[str, ...]:
        return tuple(name for kind in kinds for name in (self.text_encoders if kind == "text" else (_VAE,)))

    def _fetch(self, names: tuple[str, ...]) -> None:
        if any(getattr(self.pipeline, name) is None for name in names):
            raise EncodersAbsentError(
                f"{' and '.join(names)} are needed, but backbone.encoders=absent left them out, or they were let go "
                "when all was encoded. Use an encoded cache that holds all of this data and no evaluation, or "
                "backbone.encoders=resident or offload."
            )
        missing = self._offloaded.intersection(names) - self._fetched
        self._move(missing, self.device)
        self._fetched.update(missing)

    def _return_encoders(self) -> None:
        if self._num_encoding == 0:
            self._move(self._fetched, torch.device("cpu"))
            self._fetched.clear()

    def _move(self, names: Collection[str], device: torch.device) -> None:
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


def check_blocks(settings: Mapping[str, object], *, has_masks: bool) -> None:
    """Verifies how the transformer's blocks are to run, without loading anything of the editor.

    Args:
        settings: the constructor's arguments by name; those that it has defaults for may be left out.
        has_masks: see ``check_attention``.

    Raises:
        ValueError: a share of blocks to recompute that is none, or blocks or attention that cannot run on this machine.
    """
    checked_checkpointing(settings.get("gradient_checkpointing", False))
    check_backend(settings.get("compile_blocks"))
    check_attention(settings.get("attention"), dtype=str(settings.get("dtype")), has_masks=has_masks)


def checked_steps(edit_steps: object) -> int:
    """Returns the denoising steps of edits that ask for no other number.

    Raises:
        ValueError: it is no whole number of 1 to ``MOST_STEPS``.
    """
    if not isinstance(edit_steps, int) or not 1 <= edit_steps <= MOST_STEPS:
        raise ValueError(f"backbone.edit_steps is {edit_steps}; it must be a whole number of 1 to {MOST_STEPS}.")
    return edit_steps


def _kinds(pipeline: Any, *, but: Collection[str]) -> list[tuple[str, str]]:
    parts = pipeline.components.items()
    return sorted((name, type(part).__name__) for name, part in parts if name not in but)


def _hash_random(pipeline: Any) -> tuple[str, str]:
    """Returns hashes of seeded weights: of all parts, and of all but the denoiser."""
    modules = modules_of(pipeline)
    encoders = hash_modules(*(part for name, part in modules.items() if name != _DENOISER))
    schedule = sorted((key, value) for key, value in pipeline.scheduler.config.items() if not key.startswith("_"))
    return hash_modules(*modules.values()), _hash(encoders, type(pipeline).__name__, schedule)


def _hash(*content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
