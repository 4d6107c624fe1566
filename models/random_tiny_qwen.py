"""Qwen-Image-Edit pipelines of real classes with seeded random weights, small enough for a test.

As in the released models the VAE's factor is 8 and its latents have a mean and a spread of their own, the picture
processor has its real settings, and the template's first 64 tokens end with the header of the user's turn.
"""

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
)
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

from physedit.models.qwen_processor import PictureProcessor
from physedit.models.toy.qwen.text import END_OF_TEXT, IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START, build_tokenizer

_LATENT_CHANNELS = 4
_LATENT_MEAN = (-0.7571, -0.7089, -0.9113, 0.1075)
_LATENT_STD = (2.8184, 1.4541, 2.3275, 2.6558)
"""The first channels of the released VAE. Source: AutoencoderKLQwenImage, diffusers."""
_VAE_WIDTH = 8
_TEXT_WIDTH = 32
_HEAD_WIDTH = 16
_NUM_HEADS = 2
_VISION_PATCH_PX = 14
CHAT_TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n"
    "{% if turn['content'] is string %}{{ turn['content'] }}{% else %}{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""How turns become text, as the released models' template does for still pictures and without a system turn."""
_MERGED_PATCHES = 2


def build_random_tiny_qwen(
    pipeline_class: type[QwenImageEditPipeline] | type[QwenImageEditPlusPipeline], seed: int, *, zero_cond_t: bool
) -> QwenImageEditPipeline | QwenImageEditPlusPipeline:
    """Returns the pipeline in float32 on the CPU; the same arguments give the same weights and tokenizer.

    The global generator is left alone.

    Args:
        pipeline_class: which of the two pipelines.
        seed: decides the weights.
        zero_cond_t: references are modulated by time 0, as in Qwen-Image-Edit-2511.
    """
    tokenizer = build_tokenizer(())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = pipeline_class(
            scheduler=build_scheduler(),
            vae=_build_autoencoder(),
            text_encoder=_build_text_encoder(tokenizer),
            tokenizer=tokenizer,
            processor=build_processor(tokenizer),
            transformer=_build_transformer(zero_cond_t),
        )
    # A saved folder then names the stock class, which reads the same files.
    pipeline.register_to_config(processor=("transformers", "Qwen2VLProcessor"))
    return pipeline


def build_random_tiny_vision_chat(seed: int) -> tuple[Qwen2_5_VLForConditionalGeneration, PictureProcessor]:
    """Returns a Qwen2.5-VL that talks, in float32 on the CPU, with its processor and chat template.

    The same seed gives the same weights; the global generator is left alone.
    """
    tokenizer = build_tokenizer(())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build_text_encoder(tokenizer)
    processor = build_processor(tokenizer)
    processor.chat_template = tokenizer.chat_template = CHAT_TEMPLATE
    return model, processor


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Returns the scheduler of the released models. Source: Qwen/Qwen-Image-Edit, scheduler_config.json."""
    return FlowMatchEulerDiscreteScheduler(
        shift=1.0,
        use_dynamic_shifting=True,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        base_shift=0.5,
        max_shift=0.9,
        shift_terminal=0.02,
        time_shift_type="exponential",
    )


def _build_autoencoder() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(
        base_dim=_VAE_WIDTH,
        z_dim=_LATENT_CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=0,
        temperal_downsample=[False, True, True],
        latents_mean=list(_LATENT_MEAN),
        latents_std=list(_LATENT_STD),
    )


def build_processor(tokenizer: Qwen2Tokenizer) -> PictureProcessor:
    """Returns a processor with the released settings. Source: Qwen/Qwen-Image-Edit, preprocessor_config.json."""
    image_processor = Qwen2VLImageProcessorPil(
        patch_size=_VISION_PATCH_PX,
        merge_size=_MERGED_PATCHES,
        size={"shortest_edge": 3136, "longest_edge": 12845056},
    )
    return PictureProcessor(image_processor, tokenizer)


def _build_text_encoder(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    rows = tokenizer.get_vocab()
    text_config = {
        "vocab_size": len(tokenizer),
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 2 * _TEXT_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": _NUM_HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": None,
        "eos_token_id": rows[END_OF_TEXT],
        "pad_token_id": rows[END_OF_TEXT],
        "initializer_range": 0.3,
    }
    vision_config = {
        "depth": 2,
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 2 * _TEXT_WIDTH,
        "num_heads": _NUM_HEADS,
        "in_channels": 3,
        "patch_size": _VISION_PATCH_PX,
        "spatial_merge_size": _MERGED_PATCHES,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "out_hidden_size": _TEXT_WIDTH,
        "initializer_range": 0.3,
    }
    config = Qwen2_5_VLConfig(
        text_config=text_config,
        vision_config=vision_config,
        image_token_id=rows[IMAGE_PAD],
        video_token_id=rows[VIDEO_PAD],
        vision_start_token_id=rows[VISION_START],
        vision_end_token_id=rows[VISION_END],
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _build_transformer(zero_cond_t: bool) -> QwenImageTransformer2DModel:
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * _LATENT_CHANNELS,
        out_channels=_LATENT_CHANNELS,
        num_layers=2,
        num_attention_heads=_NUM_HEADS,
        attention_head_dim=_HEAD_WIDTH,
        joint_attention_dim=_TEXT_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(4, 6, 6),
        zero_cond_t=zero_cond_t,
    )
