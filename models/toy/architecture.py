"""The toy editor before training: every class of a real FLUX.1-Kontext pipeline, at a size that fits a commit.

Pictures are 64x64 pixels, 16x16 latent cells of 16 channels, 8x8 = 64 packed tokens of 64 channels.
"""

from collections.abc import Sequence

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxTransformer2DModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from physedit.models.toy.word_pieces import CLIP_TOKENS, build_clip_tokenizer, build_t5_tokenizer

PICTURE_PX = 64
LATENT_CHANNELS = 16
LATENT_SHIFT = 0.125
"""Not zero, and exact in float16: a trainer that forgets to normalise a latent must be found out."""
LATENT_SCALE = 0.5

_TEXT_WIDTH = 64
_VAE_CHANNELS = (16, 48, 64)


def build_untrained_pipeline(vocabulary: Sequence[str], seed: int) -> FluxKontextPipeline:
    """Returns the pipeline with seeded random weights, float32 on the CPU; the global generator is left alone."""
    tokenizer = build_clip_tokenizer(vocabulary)
    tokenizer_2 = build_t5_tokenizer(vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FluxKontextPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(
                shift=3.0,
                use_dynamic_shifting=True,
                base_image_seq_len=256,
                max_image_seq_len=4096,
                base_shift=0.5,
                max_shift=1.15,
            ),
            vae=_build_autoencoder(),
            text_encoder=_build_clip_encoder(tokenizer),
            tokenizer=tokenizer,
            text_encoder_2=_build_t5_encoder(tokenizer_2),
            tokenizer_2=tokenizer_2,
            transformer=_build_transformer(),
        )


def _build_autoencoder() -> AutoencoderKL:
    num_blocks = len(_VAE_CHANNELS)
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * num_blocks,
        up_block_types=("UpDecoderBlock2D",) * num_blocks,
        block_out_channels=_VAE_CHANNELS,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=16,
        sample_size=PICTURE_PX,
        scaling_factor=LATENT_SCALE,
        shift_factor=LATENT_SHIFT,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def _build_clip_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=_TEXT_WIDTH,
        intermediate_size=2 * _TEXT_WIDTH,
        projection_dim=_TEXT_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=CLIP_TOKENS,
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
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return T5EncoderModel(config)


def _build_transformer() -> FluxTransformer2DModel:
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=_TEXT_WIDTH,
        pooled_projection_dim=_TEXT_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(8, 12, 12),
    )
