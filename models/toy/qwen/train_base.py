"""Trains the transformer and the text encoder of the toy Qwen-Image-Edit on naive pairs, as its pipeline runs them.

Shape legend: N pairs, B batch, L tokens of the whole prompt, T of those that the transformer sees (L less 64).
Pictures are 64 packed tokens of 64 channels, and 16 patches of 1,536 numbers to the text encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import QwenImageEditPipeline
from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration

from physedit.data_loaders.scenes.scene import VOCABULARY
from physedit.models.latents import time_shift
from physedit.models.toy.fitting import FitPlan, fit
from physedit.models.toy.pairs import NaivePairs, as_network_input
from physedit.models.toy.qwen.set_encoder import read_components
from physedit.models.toy.qwen.text import IMAGE_PAD, PREFIX_TOKENS, TEMPLATE, same_word_rows
from physedit.models.toy.set_encoder import code_of
from physedit.models.toy.train_base import LEVEL_SHARES, draw_sigma, weigh_tokens

BATCH_SIZE = 8
_ENCODE_BATCH = 256
_GRID = (1, 8, 8)
"""Frames, rows and columns of a picture's packed tokens."""
_PATCHES = (1, 4, 4)
"""Frames, rows and columns of a picture's patches in the text encoder."""


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """Pairs as the networks see them; rows N..2N-1 are the mirror images of rows 0..N-1.

    Attributes:
        pictures: ``[2N, 3, 64, 64]`` uint8, the sources.
        source: ``[2N, 64, 64]`` float32, packed normalised latents.
        target: ``[2N, 64, 64]`` float32.
        weight: ``[2N, 64, 1]`` float32, the loss weight of each target token; its mean over a pair is one.
        ids: ``[3, N, L]`` int64, by prompt level, padded on the right.
        mask: ``[3, N, L]`` int64, one at tokens and zero at padding.
        positions: ``[3, L]`` int64, the text encoder's own (time, row, column), alike for all prompts.
    """

    pictures: Tensor
    source: Tensor
    target: Tensor
    weight: Tensor
    ids: Tensor
    mask: Tensor
    positions: Tensor


class TrainedParts(nn.Module):
    """The parts that learn together, as one module.

    Attributes:
        transformer: a QwenImageTransformer2DModel.
        text_encoder: a Qwen2_5_VLForConditionalGeneration.
    """

    def __init__(self, pipeline: QwenImageEditPipeline) -> None:
        super().__init__()
        self.transformer = pipeline.transformer
        self.text_encoder = pipeline.text_encoder


def train_base(pipeline: QwenImageEditPipeline, pairs: NaivePairs, plan: FitPlan, snapshot: Path) -> None:
    """Trains the pipeline's transformer and text encoder in place by flow matching; needs the set encoder only."""
    tokens = tokenise(pipeline, pairs)
    parts = TrainedParts(pipeline)
    picture_mean, picture_std = picture_statistics(pipeline)
    shift = math.exp(time_shift(pipeline.scheduler, math.prod(_GRID)))
    num_pairs = len(pairs.prompts)
    shares = torch.tensor(LEVEL_SHARES)

    def loss_of(generator: torch.Generator) -> Tensor:
        rows = torch.randint(2 * num_pairs, (BATCH_SIZE,), generator=generator)
        levels = torch.multinomial(shares, BATCH_SIZE, replacement=True, generator=generator)
        sigma = draw_sigma(BATCH_SIZE, shift, generator)
        target = tokens.target[rows]
        noise = torch.randn(target.shape, generator=generator)
        mixed = (1 - sigma[:, None, None]) * target + sigma[:, None, None] * noise
        prompts = levels, rows % num_pairs
        patches = patches_of((tokens.pictures[rows].float() / 255 - picture_mean) / picture_std)
        states, mask = encode_prompts(parts.text_encoder, patches, tokens, prompts)
        velocity: Tensor = parts.transformer(
            hidden_states=torch.cat([mixed, tokens.source[rows]], dim=1),
            timestep=sigma,
            encoder_hidden_states=states,
            encoder_hidden_states_mask=mask,
            img_shapes=[[_GRID, _GRID]] * BATCH_SIZE,
            return_dict=False,
        )[0][:, : target.shape[1]]
        error = (velocity - (noise - target)).square() * tokens.weight[rows]
        return error.mean()

    fit(plan, parts, loss_of, snapshot)


def encode_prompts(
    text_encoder: Qwen2_5_VLForConditionalGeneration,
    patches: Tensor,
    tokens: TokenPairs,
    prompts: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Returns the states ``[B, T, 64]`` of the chosen prompts with their pictures, and their mask ``[B, T]``.

    Args:
        text_encoder: its head, of which the pipeline uses nothing, is left out.
        patches: ``[16 B, 1536]`` float32.
        tokens: the prompts to choose from.
        prompts: level and number of each of the B prompts.
    """
    mask = tokens.mask[prompts]
    length = int(mask.sum(dim=1).max())
    mask = mask[:, :length]
    states: Tensor = text_encoder.model(
        input_ids=tokens.ids[prompts][:, :length],
        attention_mask=mask,
        position_ids=tokens.positions[:, None, :length].expand(-1, len(mask), -1),
        pixel_values=patches,
        image_grid_thw=torch.tensor([_PATCHES] * len(mask)),
        use_cache=False,
    ).last_hidden_state
    return states[:, PREFIX_TOKENS:], mask[:, PREFIX_TOKENS:]


@torch.no_grad()
def tokenise(pipeline: QwenImageEditPipeline, pairs: NaivePairs) -> TokenPairs:
    """Encodes all pictures and their mirror images once, and reads all prompts."""
    pictures = torch.cat([pairs.source, pairs.source.flip(-1)])
    source = _encode(pipeline, pictures)
    target = _encode(pipeline, torch.cat([pairs.naive, pairs.naive.flip(-1)]))
    by_level = list(zip(*pairs.prompts, strict=True))
    ids, mask = _read_prompts(pipeline, [prompt for prompts in by_level for prompt in prompts])
    types = (ids[:1] == pipeline.text_encoder.config.image_token_id).long()
    positions, _ = pipeline.text_encoder.model.get_rope_index(
        ids[:1], mm_token_type_ids=types, image_grid_thw=torch.tensor([_PATCHES])
    )
    return TokenPairs(
        pictures=pictures,
        source=source,
        target=target,
        weight=weigh_tokens(source, target),
        ids=ids.view(len(by_level), len(pairs.prompts), -1),
        mask=mask.view(len(by_level), len(pairs.prompts), -1),
        positions=positions[:, 0],
    )


def picture_statistics(pipeline: QwenImageEditPipeline) -> tuple[Tensor, Tensor]:
    """Returns mean and deviation ``[3, 1, 1]`` by which the processor normalises pictures in 0..1."""
    processor = pipeline.processor.image_processor
    mean, std = (torch.tensor(value)[:, None, None] for value in (processor.image_mean, processor.image_std))
    return mean, std


def patches_of(pictures: Tensor) -> Tensor:
    """Returns ``[16 B, 1536]``, patches of normalised pictures ``[B, 3, 64, 64]`` in the processor's order."""
    cells = pictures.reshape(-1, 3, 2, 2, 16, 2, 2, 16)  # [B, C, h, merged, px, w, merged, px]
    ordered = cells.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)  # [B, h, w, merged, merged, C, 1, px, px]
    return ordered.expand(-1, -1, -1, -1, -1, -1, 2, -1, -1).reshape(-1, 3 * 2 * 16 * 16)


def _encode(pipeline: QwenImageEditPipeline, pictures: Tensor) -> Tensor:
    """Returns ``[N, 64, 64]``: the packed normalised latents of uint8 pictures."""
    components = read_components(pipeline.vae)
    batches = [code_of(components, as_network_input(batch)) for batch in torch.split(pictures, _ENCODE_BATCH)]
    latents = torch.cat(batches)
    packed: Tensor = pipeline._pack_latents(latents, *latents.shape)
    return packed


def _read_prompts(pipeline: QwenImageEditPipeline, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Returns ids and mask ``[N, L]`` of the prompts in the template, each word in the spelling that is learnt."""
    tokenizer = pipeline.tokenizer
    num_pads = math.prod(_PATCHES) // pipeline.processor.image_processor.merge_size**2
    template = TEMPLATE.replace(IMAGE_PAD, IMAGE_PAD * num_pads)
    read = tokenizer([template.format(prompt) for prompt in prompts], padding=True, return_tensors="pt")
    learnt = torch.arange(len(tokenizer))
    for row, spelling in same_word_rows(tokenizer, VOCABULARY):
        learnt[spelling] = row
    return learnt[read.input_ids], read.attention_mask
