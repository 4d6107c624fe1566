"""FLUX.1-Kontext: trains and edits through the stock diffusers pipeline.

Whatever the pipeline passes to its transformer, training passes for the same picture, prompt, noise, sigma.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells, N image tokens, T text tokens,
D width.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from physedit.data_loaders.sample import EditBatch, PictureSizeError
from physedit.models.adapter_file import AdapterFormat, read_adapter, read_adapter_format, write_adapter
from physedit.models.backbone import Conditioning
from physedit.models.flux_pipeline import LORA_PRESETS, hash_pipeline, load_pipeline, time_shift
from physedit.models.flux_text import FluxTextStates
from physedit.models.latents import changed_share, pack, token_positions, unpack
from physedit.models.lora import unwrapped
from physedit.models.memo import TensorMemo
from physedit.models.pipeline_folder import check_pipeline_folder
from physedit.models.weights import RANDOM_TINY, cached_snapshot, find_weights, hash_folder

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LATENT_MEMO_BYTES = 2**28
"""Latents of so many pictures stay on the device: a small data set is encoded once, a large one as it comes."""
_TIMESTEP_DIVISOR = 1000
"""What the pipeline divides the scheduler's timesteps by, whatever their number."""


class FluxKontext:
    """A ``Backbone`` over ``FluxKontextPipeline``."""

    def __init__(
        self,
        *,
        weights: str,
        dtype: Literal["float32", "bfloat16"],
        max_text_tokens: int,
        max_area_px: int | None = None,
        gradient_checkpointing: bool = False,
        train_guidance: float = 1.0,
    ) -> None:
        """Loads the pipeline on the CPU, frozen and in evaluation mode.

        Args:
            weights: a pipeline folder, a hub id, ``toy`` or ``random_tiny``.
            dtype: of every base weight; adapters stay float32.
            max_text_tokens: length of the T5 sequence; longer instructions are cut.
            max_area_px: refuse pictures of a larger area; None for no limit.
            gradient_checkpointing: recompute each block in the backward pass.
            train_guidance: the embedded guidance during training.

        Raises:
            ValueError: no such weights, dtype or number of tokens.
        """
        if dtype not in _DTYPES:
            raise ValueError(f"backbone.dtype is '{dtype}'; it must be one of {', '.join(_DTYPES)}.")
        if not 1 <= max_text_tokens <= 512:
            raise ValueError(f"backbone.max_text_tokens is {max_text_tokens}; the pipeline takes 1 to 512 T5 tokens.")
        self._dtype = _DTYPES[dtype]
        self._max_text_tokens = max_text_tokens
        self._max_area_px = max_area_px
        self._train_guidance = train_guidance
        self.check_weights(weights)
        self._weights = weights if weights == RANDOM_TINY else find_weights(weights, "flux_kontext")
        self._pipeline = load_pipeline(self._weights, self._dtype)
        self._initial_hash = hash_pipeline(self._pipeline) if weights == RANDOM_TINY else None
        if gradient_checkpointing:
            self._pipeline.transformer.enable_gradient_checkpointing()
        self._denoiser: nn.Module = self._pipeline.transformer
        self._text = FluxTextStates(self._pipeline, max_text_tokens)
        self._latent_memo = TensorMemo(_LATENT_MEMO_BYTES)

    @staticmethod
    def check_weights(weights: str) -> None:
        """Verifies that ``weights`` can be opened, without loading anything.

        Raises:
            ValueError: neither a pipeline folder nor a hub id, or a folder without a file that its parts need.
        """
        found = weights if weights == RANDOM_TINY else find_weights(weights, "flux_kontext")
        if isinstance(found, Path):
            check_pipeline_folder(found)

    @property
    def denoiser(self) -> nn.Module:
        """The ``FluxTransformer2DModel``; its base weights are frozen."""
        return self._denoiser

    @property
    def pixel_multiple(self) -> int:
        """The VAE's factor times the 2x2 packing: 16 for the released model."""
        return 2 * int(self._pipeline.vae_scale_factor)

    @property
    def lora_presets(self) -> Mapping[str, tuple[str, ...]]:
        """See ``LORA_PRESETS``."""
        return LORA_PRESETS

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the base: file contents or hub commit, component classes, dtype and text length.

        The first use reads all weight files of a local folder.
        """
        components = sorted((name, type(part).__name__) for name, part in self._pipeline.components.items())
        parts = (self._name_of_weights(), components, str(self._dtype), self._max_text_tokens)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def to(self, device: torch.device) -> None:
        """Moves transformer, VAE and text encoders to ``device``."""
        self._pipeline.to(device)
        self.forget()

    def forget(self) -> None:
        """Drops the text states and latents that are kept; the next ``encode`` makes them anew."""
        self._text.forget()
        self._latent_memo.clear()

    @torch.no_grad()
    def encode(self, batch: EditBatch) -> Conditioning:
        """Encodes each picture and each instruction alone, so that none depends on the rest of the batch.

        Raises:
            PictureSizeError: the size is no multiple of ``pixel_multiple``, or above ``max_area_px``.
        """
        self._refuse_size(batch.source)
        self._refuse_size(batch.target)
        target = self._latents(batch.target)
        height, width = target.shape[-2:]
        prompts, pooled = self._text.states_of(batch.instructions)
        return Conditioning(
            target=target.float(),
            source=self._latents(batch.source).float(),
            text={"prompts": prompts, "pooled": pooled},
            change=changed_share(batch.source, batch.target, self._pipeline.vae_scale_factor).to(target.device),
            time_shift=time_shift(self._pipeline, num_tokens=(height // 2) * (width // 2)),
        )

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """Predicts n - x_0, float32 ``[B, C, h, w]``, from what the pipeline would pass at this sigma.

        Args:
            denoiser: the transformer, possibly wrapped.
            noisy: ``[B, C, h, w]`` float32, (1 - sigma) x_0 + sigma n.
            sigma: ``[B]`` float32; the timestep is derived from it as the pipeline derives it from the schedule.
            conditioning: what ``encode`` returned.
        """
        height, width = noisy.shape[-2:]
        prompts = conditioning.text["prompts"]
        tokens = torch.cat([pack(noisy), pack(conditioning.source)], dim=1)  # [B, N + N', 4C]
        predicted = denoiser(
            hidden_states=tokens.to(self._dtype),
            timestep=self._timestep(sigma),
            guidance=self._guidance(len(noisy), noisy.device),
            pooled_projections=conditioning.text["pooled"],
            encoder_hidden_states=prompts,
            txt_ids=torch.zeros(prompts.shape[1], 3, device=noisy.device, dtype=self._dtype),
            img_ids=token_positions(noisy, conditioning.source, self._dtype),
            joint_attention_kwargs={},
            return_dict=False,
        )[0]
        num_target_tokens = (height // 2) * (width // 2)
        return unpack(predicted[:, :num_target_tokens].float(), height=height, width=width)

    @torch.no_grad()
    def edit(
        self,
        denoiser: nn.Module,
        source: Tensor,
        instructions: Sequence[str],
        *,
        num_steps: int,
        guidance: float,
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        """Edits ``source`` uint8 ``[B, 3, H, W]`` with the stock pipeline at the source's own size.

        Source latents, text states and noise of an item do not depend on its batch; the transformer's sums
        do, by float rounding.

        Args:
            denoiser: the transformer, possibly wrapped; in evaluation mode during the call.
            source: pictures of one size.
            instructions: one a picture.
            num_steps: denoising steps.
            guidance: the embedded guidance.
            generators: one CPU generator a picture.

        Raises:
            PictureSizeError: the size is no multiple of ``pixel_multiple``, or above ``max_area_px``.
        """
        self._refuse_size(source)
        height, width = source.shape[-2:]
        prompts, pooled = self._text.states_of(instructions)
        with self._editing_with(unwrapped(denoiser)):
            pictures: Tensor = self._pipeline(
                image=_unit_range(source),
                prompt_embeds=prompts,
                pooled_prompt_embeds=pooled,
                height=height,
                width=width,
                max_area=height * width,
                _auto_resize=False,
                num_inference_steps=num_steps,
                guidance_scale=guidance,
                max_sequence_length=self._max_text_tokens,
                generator=list(generators),
                output_type="pt",
            ).images
        return (pictures.float() * 255).round().to("cpu", torch.uint8)

    def save_adapter(self, state: Mapping[str, Tensor], folder: str, adapter_format: AdapterFormat) -> None:
        """Writes ``pytorch_lora_weights.safetensors`` in float32, with the format as its metadata.

        Raises:
            ValueError: tensors that are not of that format.
        """
        write_adapter(type(self._pipeline), state, Path(folder), adapter_format)

    def load_adapter(self, folder: str) -> Mapping[str, Tensor]:
        """Reads what ``save_adapter`` wrote: float32 on the CPU under the names of ``adapter_state``.

        Raises:
            ValueError: no such file, or tensors of something other than a transformer.
        """
        return read_adapter(Path(folder))

    def adapter_format(self, folder: str) -> AdapterFormat | None:
        """Reads the format of the adapter in ``folder``; None if its file does not tell rank and alpha.

        Raises:
            ValueError: no such file, or an adapter that no one format describes.
        """
        return read_adapter_format(Path(folder))

    def _name_of_weights(self) -> str:
        if self._initial_hash is not None:
            return self._initial_hash
        if isinstance(self._weights, Path):
            return hash_folder(self._weights)
        snapshot = cached_snapshot(self._weights)
        return self._weights if snapshot is None else f"{self._weights}@{snapshot.name}"

    def _refuse_size(self, pictures: Tensor) -> None:
        height, width = pictures.shape[-2:]
        if height % self.pixel_multiple or width % self.pixel_multiple:
            raise PictureSizeError(
                f"The pictures are {width}x{height}, but FLUX.1-Kontext needs both sides to be multiples of "
                f"{self.pixel_multiple} pixels. Set data.resolution."
            )
        if self._max_area_px is not None and height * width > self._max_area_px:
            raise PictureSizeError(
                f"The pictures are {width}x{height}, above backbone.max_area_px={self._max_area_px}. Set "
                "data.resolution, or raise the limit."
            )

    def _latents(self, pictures: Tensor) -> Tensor:
        """Returns normalised posterior modes ``[B, C, h, w]``, in the base's dtype."""
        kept = [self._latent_memo.get(_digest(picture), partial(self._encode_picture, picture)) for picture in pictures]
        return torch.cat([latents for (latents,) in kept])

    def _encode_picture(self, picture: Tensor) -> tuple[Tensor]:
        vae, (height, width) = self._pipeline.vae, picture.shape[-2:]
        pixels = self._pipeline.image_processor.preprocess(_unit_range(picture[None]), height, width)
        mode = vae.encode(pixels.to(vae.device, self._dtype)).latent_dist.mode()
        latents: Tensor = (mode - vae.config.shift_factor) * vae.config.scaling_factor
        return (latents,)

    def _timestep(self, sigma: Tensor) -> Tensor:
        """Returns the transformer's time in 0..1 by the pipeline's order: scale, cast, then divide.

        Dividing before the cast moves the time by up to 4/1000 in bfloat16.
        """
        num_train_timesteps = int(self._pipeline.scheduler.config.num_train_timesteps)
        return (sigma * num_train_timesteps).to(self._dtype) / _TIMESTEP_DIVISOR

    def _guidance(self, batch_size: int, device: torch.device) -> Tensor | None:
        if not self._pipeline.transformer.config.guidance_embeds:
            return None
        return torch.full([batch_size], self._train_guidance, device=device, dtype=torch.float32)

    @contextmanager
    def _editing_with(self, denoiser: nn.Module) -> Iterator[None]:
        was_training = denoiser.training
        self._pipeline.transformer = denoiser.eval()
        try:
            yield
        finally:
            self._pipeline.transformer = self._denoiser
            denoiser.train(was_training)


def _unit_range(pictures: Tensor) -> Tensor:
    """Returns float32 in 0..1, laid out as the pipeline lays out PIL pictures: convolutions round by layout."""
    return (pictures.float() / 255).contiguous(memory_format=torch.channels_last)


def _digest(picture: Tensor) -> str:
    """Returns what tells a uint8 picture ``[3, H, W]`` from every other."""
    pixels = picture.cpu().contiguous().numpy()
    return f"{pixels.shape}/{hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()}"
