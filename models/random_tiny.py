"""A FLUX.1-Kontext pipeline of real classes with seeded random weights, small enough for a test.

As in the released model the VAE's factor is 8, so that sizes are multiples of 16 pixels, latents have a shift and
a scale, and guidance is embedded. Both tokenizers read one letter a token.
"""

import string
from itertools import chain

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

_LETTERS = string.ascii_lowercase + string.digits + ".,'-!?:;"
_CLIP_TOKENS = 77
_LATENT_CHANNELS = 4
_TEXT_WIDTH = 32
_HEAD_WIDTH = 16
_NUM_HEADS = 2
_VAE_WIDTHS = (8, 8, 16, 16)


def build_random_tiny(seed: int) -> FluxKontextPipeline:
    """Returns the pipeline in float32 on the CPU; the same seed gives the same weights and tokenizers.

    The global generator is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        clip_tokenizer, t5_tokenizer = build_tokenizers()
        return FluxKontextPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=_build_autoencoder(),
            text_encoder=_build_clip_encoder(clip_tokenizer),
            tokenizer=clip_tokenizer,
            text_encoder_2=_build_t5_encoder(t5_tokenizer),
            tokenizer_2=t5_tokenizer,
            transformer=_build_transformer(),
        )


def build_tokenizers() -> tuple[CLIPTokenizer, T5Tokenizer]:
    """Returns the pipeline's two tokenizers, which are the same for every seed."""
    return _build_clip_tokenizer(), _build_t5_tokenizer()


def _build_clip_tokenizer() -> CLIPTokenizer:
    pieces = [*chain.from_iterable((letter, f"{letter}</w>") for letter in _LETTERS)]
    specials = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *specials])}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=_CLIP_TOKENS)


def _build_t5_tokenizer() -> T5Tokenizer:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *_LETTERS, *string.ascii_uppercase]
    return T5Tokenizer(vocab=[(piece, 0.0) for piece in pieces], extra_ids=0)


def _build_clip_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=_TEXT_WIDTH,
        intermediate_size=2 * _TEXT_WIDTH,
        projection_dim=_TEXT_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=_CLIP_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def _build_t5_encoder(tokenizer: T5Tokenizer) -> T5EncoderModel:
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=_TEXT_WIDTH,
        d_kv=16,
        d_ff=2 * _TEXT_WIDTH,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return T5EncoderModel(config)


def _build_autoencoder() -> AutoencoderKL:
    num_blocks = len(_VAE_WIDTHS)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * num_blocks,
        up_block_types=("UpDecoderBlock2D",) * num_blocks,
        block_out_channels=_VAE_WIDTHS,
        layers_per_block=1,
        latent_channels=_LATENT_CHANNELS,
        norm_num_groups=4,
        # Those of the released model.
        scaling_factor=0.3611,
        shift_factor=0.1159,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _build_transformer() -> FluxTransformer2DModel:
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * _LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=_HEAD_WIDTH,
        num_attention_heads=_NUM_HEADS,
        joint_attention_dim=_TEXT_WIDTH,
        pooled_projection_dim=_TEXT_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
