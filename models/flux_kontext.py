"""FLUX.1-Kontext: trains and edits through the stock diffusers pipeline.

Whatever the pipeline passes to its transformer, training passes for the same picture, prompt, noise, sigma.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells, N image tokens, T text tokens,
D width.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from physedit.data_loaders.sample import EditBatch
from physedit.models.adapter_file import AdapterFormat, write_adapter
from physedit.models.attention import check_attention
from physedit.models.backbone import Conditioning, join
from physedit.models.blocks import CompileBackend
from physedit.models.encoding import Latents
from physedit.models.flux_outline import checked_area, checked_tokens, flux_outline
from physedit.models.flux_pipeline import LORA_PRESETS, load_pipeline
from physedit.models.flux_text import FluxTextStates
from physedit.models.latents import pack, pipeline_time, token_positions, unpack
from physedit.models.outline import Outline, checked_guidance
from physedit.models.parts import Encoders, MemorySettings, PipelineParts, check_blocks, checked_dtype, checked_steps
from physedit.models.picture_latents import PictureLatents
from physedit.models.pictures import as_bytes, batch_sizes, stacked_sources
from physedit.models.pipeline_folder import check_pipeline_folder
from physedit.models.quantization import Quantization, check_quantization
from physedit.models.sizes import RELEASED_AREA_PX, PictureSizes, kontext_sizes
from physedit.models.weights import RANDOM_TINY, find_weights


class FluxKontext:
    """A ``Backbone`` over ``FluxKontextPipeline``."""

    max_sources = 1
    text_sees_pictures = False
    lora_presets = LORA_PRESETS

    def __init__(
        self,
        *,
        weights: str,
        dtype: Literal["float32", "bfloat16"],
        max_text_tokens: int,
        area_px: int = RELEASED_AREA_PX,
        encoders: Encoders = "resident",
        quantization: Quantization | None = None,
        gradient_checkpointing: bool | int = False,
        compile_blocks: CompileBackend | None = None,
        attention: str | None = None,
        train_guidance: float = 1.0,
        edit_guidance: float = 2.5,
        edit_steps: int = 28,
    ) -> None:
        """Loads the pipeline on the CPU, frozen and in evaluation mode.

        Args:
            weights: a pipeline folder, a hub id with or without ``@revision``, ``toy`` or ``random_tiny``.
            dtype: of every base weight; adapters stay float32.
            max_text_tokens: length of the T5 sequence; longer instructions are cut.
            area_px: the area that pictures are worked at; see ``kontext_sizes``.
            encoders: text encoders and VAE on the device (resident), there while they are used (offload), or without
                text encoders (absent).
            quantization: of the transformer's linear layers; None keeps them in ``dtype``.
            gradient_checkpointing: recompute each block in the backward pass, or the first of every so many.
            compile_blocks: the backend of torch.compile for the transformer's blocks; None compiles nothing.
            attention: the kernels of the transformer's attention; None for diffusers' own choice.
            train_guidance: the embedded guidance during training.
            edit_guidance: the embedded guidance of edits that ask for no other.
            edit_steps: the denoising steps of edits that ask for no other number.

        Raises:
            ValueError: no such weights, dtype, placement, area, number of tokens or steps, guidance, or no way to
                quantise.
        """
        self._max_text_tokens = checked_tokens(max_text_tokens)
        self._train_guidance = checked_guidance("train_guidance", train_guidance)
        self.default_guidance = checked_guidance("edit_guidance", edit_guidance)
        self.default_num_steps = checked_steps(edit_steps)
        check_attention(attention, dtype=dtype, has_masks=False)
        memory = MemorySettings(encoders, quantization, gradient_checkpointing, compile_blocks, attention)
        found = _found_weights(weights)
        check_quantization(quantization, weights)
        left_out = {"text_encoder": None, "text_encoder_2": None} if encoders == "absent" else {}
        pipeline = load_pipeline(found, checked_dtype(dtype), left_out, quantization)
        self._parts = PipelineParts(pipeline, found, checked_dtype(dtype), memory)
        self._pipeline, self._dtype = pipeline, self._parts.dtype
        self.denoiser, self.encoders = self._parts.denoiser, self._parts
        self._multiple_px = 2 * int(pipeline.vae_scale_factor)
        self._area_px = checked_area(area_px, self._multiple_px)
        self._text = FluxTextStates(self._parts, max_text_tokens)
        self._pictures = PictureLatents(self._parts, _encode_picture)

    @staticmethod
    def check_weights(weights: str) -> None:
        """Verifies that ``weights`` can be opened, without loading anything.

        Raises:
            ValueError: neither a pipeline folder nor a hub id, or a folder of another pipeline or without a file that
                its parts need.
        """
        _found_weights(weights)

    @staticmethod
    def outline(settings: Mapping[str, object]) -> Outline:
        """See ``flux_outline``; blocks and attention that the constructor would refuse are refused too."""
        check_blocks(settings, has_masks=False)
        return flux_outline(settings)

    def sizes_of(self, height: int, width: int) -> PictureSizes:
        """See ``kontext_sizes``."""
        return kontext_sizes(height, width, area_px=self._area_px, multiple_px=self._multiple_px)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the base: file contents or hub commit, component classes, dtype, text length and area.

        The first use reads all weight files of a local folder.
        """
        return self._parts.fingerprint(self._max_text_tokens, self._area_px)

    @cached_property
    def encoding_key(self) -> str:
        """A hash of the encoders' files or hub commit, dtype, text length, area and multiple.

        The first use reads the encoders' weight files of a local folder.
        """
        return self._parts.encoding_key(self._max_text_tokens, self._area_px, self._multiple_px)

    def to(self, device: torch.device) -> None:
        """Moves the transformer, and encoders that stay there, to ``device``."""
        self._parts.to(device)
        self.forget()

    def forget(self) -> None:
        """Drops the text states and latents that are kept; the next ``encode`` makes them anew."""
        self._text.forget()
        self._pictures.memo.clear()

    def keeping_encoded(self, folder: Path) -> AbstractContextManager[None]:
        """See ``PipelineParts.keeping``."""
        return self._parts.keeping(
            folder, self.encoding_key, {"text": self._text.memo, "pictures": self._pictures.memo}
        )

    @torch.no_grad()
    def encode(self, batch: EditBatch) -> Conditioning:
        """Encodes each picture and each instruction alone, so that none depends on the rest of the batch.

        Raises:
            PictureSizeError: sources of the batch are edited at unlike sizes, or it has references.
            EncodersAbsentError: there are no text encoders.
        """
        return join(self.encode_pictures(batch), self.encode_text(batch.given, batch.instructions))

    @torch.no_grad()
    def encode_pictures(self, batch: EditBatch) -> Latents:
        """Encodes each picture alone.

        Raises:
            PictureSizeError: as ``encode``.
            EncodersAbsentError: the VAE was dropped.
        """
        sizes = batch_sizes(batch.given, batch.sample_ids, self.sizes_of, max_sources=self.max_sources)
        return self._pictures.of_batch(batch, sizes)

    @torch.no_grad()
    def encode_text(
        self,
        given: Sequence[Sequence[Tensor]],  # noqa: ARG002 - part of the seam, but this text sees no pictures
        instructions: Sequence[str],
    ) -> Mapping[str, Tensor]:
        """Encodes each instruction alone: T5 states as ``prompts``, pooled CLIP states as ``pooled``.

        Args:
            given: not looked at; may be empty.
            instructions: one an item.

        Raises:
            EncodersAbsentError: there are no text encoders.
        """
        with self._parts.encoding():
            prompts, pooled = self._text.states_of(instructions)
        return {"prompts": prompts, "pooled": pooled}

    def join_text(self, texts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Returns the states of several items from those of each; all have one length."""
        return {name: torch.cat([text[name] for text in texts]) for name in texts[0]}

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """See ``Backbone.velocity``."""
        height, width = noisy.shape[-2:]
        prompts = conditioning.text["prompts"]
        source = conditioning.sources[0]
        tokens = torch.cat([pack(noisy), pack(source)], dim=1)  # [B, N + N', 4C]
        predicted = denoiser(
            hidden_states=tokens.to(self._dtype),
            timestep=pipeline_time(sigma, self._pipeline.scheduler, self._dtype),
            guidance=self._guidance(len(noisy), noisy.device),
            pooled_projections=conditioning.text["pooled"],
            encoder_hidden_states=prompts,
            txt_ids=torch.zeros(prompts.shape[1], 3, device=noisy.device, dtype=self._dtype),
            img_ids=token_positions(noisy, source, self._dtype),
            joint_attention_kwargs={},
            return_dict=False,
        )[0]
        num_target_tokens = (height // 2) * (width // 2)
        return unpack(predicted[:, :num_target_tokens].float(), height=height, width=width)

    @torch.no_grad()
    def edit(
        self,
        denoiser: nn.Module,
        given: Sequence[Sequence[Tensor]],
        instructions: Sequence[str],
        *,
        num_steps: int,
        guidance: float,
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        """See ``Backbone.edit``; ``guidance`` is the embedded one.

        Source latents, text states and noise of an item do not depend on its batch; the transformer's sums
        do, by float rounding.

        Raises:
            PictureSizeError: sources that are edited at unlike sizes, or references.
            EncodersAbsentError: there are no text encoders.
            NotFiniteEditError: the edit is no picture.
        """
        names = [f"Item {number}" for number in range(len(given))]
        sizes = batch_sizes(given, names, self.sizes_of, max_sources=self.max_sources)
        (sources,), (height, width) = stacked_sources(given, sizes), sizes.output
        with self._parts.encoding():
            prompts, pooled = self._text.states_of(instructions)
        with self._parts.editing_with(denoiser, self._pictures.memo):
            pictures: Tensor = self._pipeline(
                image=_unit_range(sources.to(self._parts.device)),
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
        return as_bytes(pictures)

    def save_adapter(self, state: Mapping[str, Tensor], folder: str, adapter_format: AdapterFormat) -> None:
        """Writes ``pytorch_lora_weights.safetensors`` in float32, with the format as its metadata.

        Raises:
            ValueError: tensors that are not of that format.
        """
        write_adapter(type(self._pipeline), state, Path(folder), adapter_format)

    def _guidance(self, batch_size: int, device: torch.device) -> Tensor | None:
        if not self._pipeline.transformer.config.guidance_embeds:
            return None
        return torch.full([batch_size], self._train_guidance, device=device, dtype=torch.float32)


def _found_weights(weights: str) -> Path | str:
    found = weights if weights == RANDOM_TINY else find_weights(weights, "flux_kontext")
    if isinstance(found, Path):
        check_pipeline_folder(found, "FluxKontextPipeline")
    return found


def _unit_range(pictures: Tensor) -> Tensor:
    """Returns float32 in 0..1, laid out as the pipeline lays out PIL pictures: convolutions round by layout."""
    return (pictures.float() / 255).contiguous(memory_format=torch.channels_last)


def _encode_picture(parts: PipelineParts, picture: Tensor) -> Tensor:
    """Returns the normalised posterior mode of a picture."""
    pipeline, (height, width) = parts.pipeline, picture.shape[-2:]
    vae = pipeline.vae
    pixels = pipeline.image_processor.preprocess(_unit_range(picture[None]), height, width)
    mode = vae.encode(pixels.to(vae.device, parts.dtype)).latent_dist.mode()
    latents: Tensor = (mode - vae.config.shift_factor) * vae.config.scaling_factor
    return latents
