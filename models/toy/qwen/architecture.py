"""The toy Qwen-Image-Edit before training: every class of the real pipeline, at a size that fits a commit.

Pictures are 64x64 pixels, 16x16 latent cells of 16 channels, 8x8 = 64 packed tokens of 64 channels. The text encoder
sees the same picture as 4x4 patches of 16 pixels, merged to four tokens.
"""

from collections.abc import Sequence

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    QwenImageEditPipeline,
    QwenImageTransformer2DModel,
)
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

from physedit.models.qwen_processor import PictureProcessor
from physedit.models.random_tiny_qwen import build_scheduler
from physedit.models.toy.qwen.text import END_OF_TEXT, IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, build_tokenizer

PICTURE_PX = 64
LATENT_CHANNELS = 16
LATENT_MEAN = tuple((-1.0) ** channel * (0.25 + channel / 16) for channel in range(LATENT_CHANNELS))
"""Neither zero nor alike, and exact in float16: a trainer that forgets to normalise a latent must be found out."""
LATENT_STD = tuple(0.5 + channel % 5 / 4 for channel in range(LATENT_CHANNELS))

_TEXT_WIDTH = 64
_TEXT_HEADS = 4
_VISION_WIDTH = 32
_VISION_PATCH_PX = 16
_MERGED_PATCHES = 2
_SMALLEST_PX, _LARGEST_PX = 32**2, 1024**2
"""Areas that the processor leaves as they are."""
_VAE_WIDTH = 32


def build_untrained_pipeline(vocabulary: Sequence[str], seed: int) -> QwenImageEditPipeline:
    """Returns the pipeline with seeded random weights, float32 on the CPU; the global generator is left alone."""
    tokenizer = build_tokenizer(vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QwenImageEditPipeline(
            scheduler=build_scheduler(),
            vae=_build_autoencoder(),
            text_encoder=_build_text_encoder(tokenizer),
            tokenizer=tokenizer,
            processor=_build_processor(tokenizer),
            transformer=_build_transformer(),
        )


def _build_autoencoder() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(
        base_dim=_VAE_WIDTH,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 1, 1],
        num_res_blocks=0,
        temperal_downsample=[False, True],
        latents_mean=list(LATENT_MEAN),
        latents_std=list(LATENT_STD),
    )


def _build_processor(tokenizer: Qwen2Tokenizer) -> PictureProcessor:
    image_processor = Qwen2VLImageProcessorPil(
        patch_size=_VISION_PATCH_PX,
        merge_size=_MERGED_PATCHES,
        size={"shortest_edge": _SMALLEST_PX, "longest_edge": _LARGEST_PX},
    )
    return PictureProcessor(image_processor, tokenizer)


def _build_text_encoder(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    rows = tokenizer.get_vocab()
    text_config = {
        "vocab_size": len(tokenizer),
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 2 * _TEXT_WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": _TEXT_HEADS,
        "num_key_value_heads": _TEXT_HEADS,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": rows[END_OF_TEXT],
        "pad_token_id": rows[END_OF_TEXT],
    }
    vision_config = {
        "depth": 1,
        "hidden_size": _VISION_WIDTH,
        "intermediate_size": 2 * _VISION_WIDTH,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": _VISION_PATCH_PX,
        "spatial_merge_size": _MERGED_PATCHES,
        "temporal_patch_size": 2,
        "window_size": PICTURE_PX,
        "fullatt_block_indexes": [0],
        "out_hidden_size": _TEXT_WIDTH,
    }
    config = Qwen2_5_VLConfig(
        text_config=text_config,
        vision_config=vision_config,
        image_token_id=rows[IMAGE_PAD],
        video_token_id=rows[VIDEO_PAD],
        vision_start_token_id=rows[VISION_START],
        vision_end_token_id=rows[VISION_END],
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _build_transformer() -> QwenImageTransformer2DModel:
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=6,
        num_attention_heads=4,
        attention_head_dim=24,
        joint_attention_dim=_TEXT_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(4, 10, 10),
    )
