"""Qwen-Image-Edit and its successors of several pictures: trains and edits through the stock diffusers pipelines.

Whatever the pipeline passes to its transformer, training passes for the same pictures, prompt, noise, sigma.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells, N image tokens, T text tokens, D width.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.sample import EditBatch
from physedit.models.adapter_file import AdapterFormat, write_adapter
from physedit.models.attention import check_attention
from physedit.models.backbone import Conditioning, join
from physedit.models.blocks import CompileBackend
from physedit.models.encoding import Latents
from physedit.models.latents import pack, pipeline_time, unpack
from physedit.models.outline import Outline, checked_guidance
from physedit.models.parts import Encoders, MemorySettings, PipelineParts, check_blocks, checked_dtype, checked_steps
from physedit.models.picture_latents import PictureLatents
from physedit.models.pictures import batch_sizes
from physedit.models.pipeline_folder import check_pipeline_folder
from physedit.models.quantization import Quantization, check_quantization
from physedit.models.qwen_edit import draw, items_at_once
from physedit.models.qwen_outline import qwen_outline
from physedit.models.qwen_pipeline import (
    MAX_SOURCES,
    TOY_NAME,
    EditPipeline,
    check_steps,
    checked_areas,
    checked_pipeline,
    found_weights,
    load_pipeline,
    working_at,
)
from physedit.models.qwen_presets import lora_presets
from physedit.models.qwen_text import MASK, PROMPTS, QwenTextStates, padded
from physedit.models.sizes import RELEASED_AREA_PX, PictureSizes, qwen_size
from physedit.models.weights import RANDOM_TINY, find_weights


class QwenImageEdit:
    """A ``Backbone`` over ``QwenImageEditPipeline`` (one picture) or ``QwenImageEditPlusPipeline`` (up to three)."""

    text_sees_pictures = True

    def __init__(
        self,
        *,
        weights: str,
        dtype: Literal["float32", "bfloat16"],
        pipeline: EditPipeline,
        area_px: int = RELEASED_AREA_PX,
        vision_area_px: int | None = None,
        encoders: Encoders = "resident",
        quantization: Quantization | None = None,
        gradient_checkpointing: bool | int = False,
        compile_blocks: CompileBackend | None = None,
        attention: str | None = None,
        edit_guidance: float = 4.0,
        edit_steps: int = 50,
        negative_prompt: str = " ",
    ) -> None:
        """Loads the pipeline on the CPU, frozen and in evaluation mode.

        Args:
            weights: a pipeline folder, a hub id with or without ``@revision``, ``toy`` or ``random_tiny``.
            dtype: of every base weight; adapters stay float32.
            pipeline: what the weights must be; template, sizes and number of pictures follow it.
            area_px: the area that pictures are worked at; see ``qwen_size``.
            vision_area_px: of QwenImageEditPlusPipeline alone, the area that its text encoder sees a picture at;
                None for QwenImageEditPipeline, whose text encoder sees the picture as it is worked at.
            encoders: text encoder and VAE on the device (resident), there while they are used (offload), or without
                text encoder (absent).
            quantization: of the transformer's linear layers; None keeps them in ``dtype``.
            gradient_checkpointing: recompute each block in the backward pass, or the first of every so many.
            compile_blocks: the backend of torch.compile for the transformer's blocks; None compiles nothing.
            attention: the kernels of the transformer's attention; None for diffusers' own choice.
            edit_guidance: the true guidance of edits that ask for no other.
            edit_steps: the denoising steps of edits that ask for no other number.
            negative_prompt: what an edit with guidance above 1 is led away from, seen with the same pictures.

        Raises:
            ValueError: no such weights, dtype, pipeline, placement, area, guidance or steps.
        """
        self.max_sources = MAX_SOURCES[checked_pipeline(pipeline)]
        self._area_px, self._vision_area_px = checked_areas(pipeline, area_px, vision_area_px)
        self.default_guidance = checked_guidance("edit_guidance", edit_guidance)
        self.default_num_steps = checked_steps(edit_steps)
        self._negative_prompt = negative_prompt
        found = found_weights(weights, pipeline)
        check_quantization(quantization, weights)
        check_attention(attention, dtype=dtype, has_masks=True)
        memory = MemorySettings(encoders, quantization, gradient_checkpointing, compile_blocks, attention)
        left_out = {"text_encoder": None} if encoders == "absent" else {}
        self._pipeline = load_pipeline(pipeline, found, checked_dtype(dtype), left_out, quantization)
        self._parts = PipelineParts(self._pipeline, found, checked_dtype(dtype), memory)
        self._dtype, self.denoiser, self.encoders = self._parts.dtype, self._parts.denoiser, self._parts
        self._text = QwenTextStates(self._parts, area_px=self._area_px, vision_area_px=self._vision_area_px)
        self._pictures = PictureLatents(self._parts, _encode_picture)

    @staticmethod
    def check_weights(weights: str) -> None:
        """Verifies that ``weights`` can be opened, without loading anything.

        Which of the two pipelines they must be is known to the constructor alone, which checks that first.

        Raises:
            ValueError: neither a pipeline folder nor a hub id, or a folder of another pipeline or without a file that
                its parts need.
        """
        found = weights if weights == RANDOM_TINY else find_weights(weights, TOY_NAME)
        if isinstance(found, Path):
            check_pipeline_folder(found, *MAX_SOURCES)

    @staticmethod
    def outline(settings: Mapping[str, object]) -> Outline:
        """See ``qwen_outline``; blocks and attention that the constructor would refuse are refused too."""
        check_blocks(settings, has_masks=True)
        return qwen_outline(settings)

    def sizes_of(self, height: int, width: int) -> PictureSizes:
        """Both sizes are ``qwen_size``."""
        size = qwen_size(height, width, area_px=self._area_px)
        return PictureSizes(source=size, output=size)

    @property
    def lora_presets(self) -> Mapping[str, tuple[str, ...]]:
        """See ``qwen_presets.lora_presets``."""
        return lora_presets(int(self._pipeline.transformer.config.num_layers))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the base: file contents or hub commit, component classes, dtype, pipeline and areas.

        The first use reads all weight files of a local folder.
        """
        return self._parts.fingerprint(*self._kind_and_areas)

    @cached_property
    def encoding_key(self) -> str:
        """A hash of the encoders' files or hub commit, dtype, pipeline, areas and template.

        The first use reads the encoders' weight files of a local folder.
        """
        template = (self._pipeline.prompt_template_encode, self._pipeline.prompt_template_encode_start_idx)
        return self._parts.encoding_key(*self._kind_and_areas, template)

    @property
    def _kind_and_areas(self) -> tuple[str, int, int, str]:
        # With torchvision the same files make another image processor, which rounds otherwise.
        image_processor = type(self._pipeline.processor.image_processor).__name__
        return type(self._pipeline).__name__, self._area_px, self._vision_area_px, image_processor

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
        """Encodes each picture, and each instruction with its pictures, alone: none depends on the rest of the batch.

        ``text`` holds ``prompts`` and, if instructions are unlike in length, ``mask``; see ``QwenTextStates``.

        Raises:
            PictureSizeError: pictures of the batch are edited at unlike sizes, or are too many.
            EncodersAbsentError: there is no text encoder.
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
    def encode_text(self, given: Sequence[Sequence[Tensor]], instructions: Sequence[str]) -> Mapping[str, Tensor]:
        """Encodes each instruction with its pictures alone; see ``QwenTextStates.states_of``.

        Raises:
            EncodersAbsentError: there is no text encoder.
            InstructionError: an instruction is too long, or has words of the template.
        """
        with self._parts.encoding():
            return self._text.states_of(given, instructions)

    def join_text(self, texts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Returns the states of several items from those of each, padded as ``encode_text`` pads them."""
        return padded([text[PROMPTS][0] for text in texts])

    def velocity(self, denoiser: nn.Module, noisy: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        """See ``Backbone.velocity``."""
        height, width = noisy.shape[-2:]
        pictures = (noisy, *conditioning.sources)
        tokens = torch.cat([pack(picture) for picture in pictures], dim=1)  # [B, N + N' + .., 4C]
        predicted = denoiser(
            hidden_states=tokens.to(self._dtype),
            timestep=pipeline_time(sigma, self._pipeline.scheduler, self._dtype),
            guidance=None,
            encoder_hidden_states_mask=conditioning.text.get(MASK),
            encoder_hidden_states=conditioning.text[PROMPTS],
            img_shapes=[[_grid(picture) for picture in pictures]] * len(noisy),
            attention_kwargs={},
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
        """See ``Backbone.edit``; ``guidance`` is the true one, and up to 1 there is none, and no negative prompt.

        The pipelines' own default is the size of the last picture given. Latents, text states and noise of an item do
        not depend on its batch; the transformer's sums do, by float rounding. QwenImageEditPlusPipeline takes one item
        at a time.

        Raises:
            PictureSizeError: pictures that are edited at unlike sizes, or too many.
            EncodersAbsentError: there is no text encoder.
            NotFiniteEditError: the edit is no picture.
            ValueError: one step, of which this scheduler makes not-a-number.
        """
        check_steps(self._pipeline, num_steps)
        names = [f"Item {number}" for number in range(len(given))]
        size = batch_sizes(given, names, self.sizes_of, max_sources=self.max_sources).output
        together = items_at_once(len(given), self.max_sources)
        negative = self._negative_prompt if guidance > 1 else None
        with self._parts.encoding():
            texts = [self._text.in_place_of_prompts(given[part], instructions[part], negative) for part in together]
        with (
            self._parts.editing_with(denoiser, self._pictures.memo),
            working_at(self._pipeline, self._area_px, self._vision_area_px),
        ):
            return draw(
                self._pipeline, given, texts, generators,
                together=together, size=size, num_steps=num_steps, guidance=guidance,
            )  # fmt: skip

    def save_adapter(self, state: Mapping[str, Tensor], folder: str, adapter_format: AdapterFormat) -> None:
        """Writes ``pytorch_lora_weights.safetensors`` in float32, with the format as its metadata.

        Raises:
            ValueError: tensors that are not of that format.
        """
        write_adapter(type(self._pipeline), state, Path(folder), adapter_format)


def _grid(latents: Tensor) -> tuple[int, int, int]:
    """Returns frames, rows and columns of the tokens of ``[B, C, h, w]``."""
    return 1, latents.shape[-2] // 2, latents.shape[-1] // 2


def _encode_picture(parts: PipelineParts, picture: Tensor) -> Tensor:
    """Returns the normalised posterior mode of a picture."""
    pipeline, (height, width) = parts.pipeline, picture.shape[-2:]
    vae = pipeline.vae
    # From PIL as in the pipeline: convolutions round by layout.
    pixels = pipeline.image_processor.preprocess(as_image(picture), height, width).unsqueeze(2)
    mode = vae.encode(pixels.to(vae.device, parts.dtype)).latent_dist.mode()  # [1, C, 1, h, w]
    mean, spread = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(mode)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    latents: Tensor = (mode - mean) / spread
    return latents[:, :, 0]
