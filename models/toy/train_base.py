"""Trains the toy editor's transformer and text encoders on naive pairs, with the pipeline's own forward.

Shape legend: N pairs, B batch. Pictures are 64 packed tokens of 64 channels, prompts 24 (T5) or 32 (CLIP) tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import FluxKontextPipeline
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from physedit.models.latents import time_shift
from physedit.models.toy.fitting import FitPlan, fit
from physedit.models.toy.pairs import NaivePairs, as_network_input
from physedit.models.toy.set_encoder import code_of, read_components
from physedit.models.toy.word_pieces import CLIP_TOKENS, T5_TOKENS, bare_words

BATCH_SIZE = 8
LEVEL_SHARES = (0.6, 0.2, 0.2)
"""How often a step shows the superficial, intermediate and explicit prompt; the target is naive at every level."""
CHANGED_WEIGHT = 4.0
"""Relative loss weight of tokens that the edit changes: a few in sixty-four, where the base tells objects apart."""
_CHANGE = 1e-2
_GUIDANCE_RANGE = (1.0, 4.0)
_ENCODE_BATCH = 256


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """Pairs as the transformer sees them; rows N..2N-1 are the mirror images of rows 0..N-1.

    Attributes:
        source: ``[2N, 64, 64]`` float32, packed normalised latents.
        target: ``[2N, 64, 64]`` float32.
        weight: ``[2N, 64, 1]`` float32, the loss weight of each target token; its mean over a pair is one.
        clip_ids: ``[3, N, 32]`` int64, by prompt level.
        t5_ids: ``[3, N, 24]`` int64.
    """

    source: Tensor
    target: Tensor
    weight: Tensor
    clip_ids: Tensor
    t5_ids: Tensor


class TrainedParts(nn.Module):
    """The parts that learn together, as one module.

    Attributes:
        transformer: a FluxTransformer2DModel.
        text_encoder: a CLIPTextModel.
        text_encoder_2: a T5EncoderModel.
    """

    def __init__(self, pipeline: FluxKontextPipeline) -> None:
        super().__init__()
        self.transformer = pipeline.transformer
        self.text_encoder = pipeline.text_encoder
        self.text_encoder_2 = pipeline.text_encoder_2


def train_base(pipeline: FluxKontextPipeline, pairs: NaivePairs, plan: FitPlan, snapshot: Path) -> None:
    """Trains the pipeline's transformer and text encoders in place by flow matching; needs the set encoder only."""
    tokens = tokenise(pipeline, pairs)
    parts = TrainedParts(pipeline)
    image_ids = _image_ids(pipeline)
    shift = math.exp(time_shift(pipeline.scheduler, num_tokens=64))
    num_pairs = len(pairs.prompts)
    shares = torch.tensor(LEVEL_SHARES)

    def loss_of(generator: torch.Generator) -> Tensor:
        rows = torch.randint(2 * num_pairs, (BATCH_SIZE,), generator=generator)
        levels = torch.multinomial(shares, BATCH_SIZE, replacement=True, generator=generator)
        sigma = draw_sigma(BATCH_SIZE, shift, generator)
        low, high = _GUIDANCE_RANGE
        guidance = low + (high - low) * torch.rand(BATCH_SIZE, generator=generator)
        target = tokens.target[rows]
        noise = torch.randn(target.shape, generator=generator)
        mixed = (1 - sigma[:, None, None]) * target + sigma[:, None, None] * noise
        prompts = rows % num_pairs
        velocity: Tensor = parts.transformer(
            hidden_states=torch.cat([mixed, tokens.source[rows]], dim=1),
            timestep=sigma,
            guidance=guidance,
            pooled_projections=parts.text_encoder(tokens.clip_ids[levels, prompts]).pooler_output,
            encoder_hidden_states=parts.text_encoder_2(tokens.t5_ids[levels, prompts])[0],
            txt_ids=torch.zeros(T5_TOKENS, 3),
            img_ids=image_ids,
            return_dict=False,
        )[0][:, : target.shape[1]]
        error = (velocity - (noise - target)).square() * tokens.weight[rows]
        return error.mean()

    fit(plan, parts, loss_of, snapshot)


def draw_sigma(count: int, shift: float, generator: torch.Generator) -> Tensor:
    """Returns logit-normal noise levels in (0, 1), shifted as the pipeline's scheduler shifts its own."""
    plain = torch.randn(count, generator=generator).sigmoid()
    return shift * plain / (1 + (shift - 1) * plain)


def weigh_tokens(source: Tensor, target: Tensor) -> Tensor:
    """Returns the loss weights ``[N, tokens, 1]`` of packed latents; their mean over a pair is one."""
    is_changed = (source - target).abs().amax(dim=-1, keepdim=True) > _CHANGE
    weight = torch.where(is_changed, CHANGED_WEIGHT, 1.0)
    return weight / weight.mean(dim=1, keepdim=True)


@torch.no_grad()
def tokenise(pipeline: FluxKontextPipeline, pairs: NaivePairs) -> TokenPairs:
    """Encodes all pictures, their mirror images and all prompts once."""
    source = _encode(pipeline, torch.cat([pairs.source, pairs.source.flip(-1)]))
    target = _encode(pipeline, torch.cat([pairs.naive, pairs.naive.flip(-1)]))
    by_level = list(zip(*pairs.prompts, strict=True))
    return TokenPairs(
        source=source,
        target=target,
        weight=weigh_tokens(source, target),
        clip_ids=torch.stack([_ids(pipeline.tokenizer, prompts, CLIP_TOKENS) for prompts in by_level]),
        t5_ids=torch.stack([_bare_ids(pipeline.tokenizer_2, prompts) for prompts in by_level]),
    )


def _encode(pipeline: FluxKontextPipeline, pictures: Tensor) -> Tensor:
    """Returns ``[N, 64, 64]``: the packed normalised latents of uint8 pictures."""
    components = read_components(pipeline.vae)
    batches = [code_of(components, as_network_input(batch)) for batch in torch.split(pictures, _ENCODE_BATCH)]
    latents = torch.cat(batches)
    packed: Tensor = pipeline._pack_latents(latents, *latents.shape)
    return packed


def _bare_ids(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> Tensor:
    """Returns ids of the prompts' bare words: other spellings get these words' embeddings after training."""
    return _ids(tokenizer, [bare_words(prompt) for prompt in prompts], T5_TOKENS)


def _ids(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], num_tokens: int) -> Tensor:
    """Returns ``[N, num_tokens]`` int64.

    Raises:
        ValueError: a prompt is longer.
    """
    longest = max(map(len, tokenizer(list(prompts)).input_ids))
    if longest > num_tokens:
        raise ValueError(
            f"A prompt has {longest} tokens, but the toy editor reads {num_tokens}. Shorten the prompts of the scenes, "
            "or raise the limit in models/toy/word_pieces.py and rebuild."
        )
    padded = tokenizer(list(prompts), padding="max_length", max_length=num_tokens, return_tensors="pt")
    ids: Tensor = padded.input_ids
    return ids


def _image_ids(pipeline: FluxKontextPipeline) -> Tensor:
    """Returns ``[128, 3]``: target tokens, then reference tokens marked by 1 in the first column."""
    target = pipeline._prepare_latent_image_ids(1, 8, 8, "cpu", torch.float32)
    reference = target.clone()
    reference[:, 0] = 1
    return torch.cat([target, reference])
