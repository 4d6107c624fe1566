"""The parts of the released editors, from the settings they were released with.

Source: config.json files of black-forest-labs/FLUX.1-Kontext-dev and Qwen/Qwen-Image-Edit, and the defaults of the
classes. Later releases of Qwen-Image-Edit have the same sizes.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

FLUX_TRANSFORMER: dict[str, Any] = {"guidance_embeds": True}
FLUX_VAE: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "latent_channels": 16,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
CLIP: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "projection_dim": 768,
}  # fmt: skip
T5: dict[str, Any] = {
    "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
QWEN_TRANSFORMER: dict[str, Any] = {}
QWEN_VAE: dict[str, Any] = {}
QWEN_TEXT: dict[str, Any] = {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [16, 24, 24]},
}  # fmt: skip
QWEN_VISION: dict[str, Any] = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584
}  # fmt: skip


def released_flux() -> dict[str, nn.Module]:
    """Returns the parts of FLUX.1-Kontext-dev on the meta device."""
    with torch.device("meta"):
        return flux_parts()


def released_qwen() -> dict[str, nn.Module]:
    """Returns the parts of Qwen-Image-Edit on the meta device."""
    with torch.device("meta"):
        return qwen_parts({})


def flux_parts(but: Collection[str] = ()) -> dict[str, nn.Module]:
    """Returns the parts of FLUX.1-Kontext-dev on torch's default device, but for those named in ``but``."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    parts: dict[str, nn.Module] = {
        "transformer": FluxTransformer2DModel(**FLUX_TRANSFORMER),
        "vae": AutoencoderKL(**FLUX_VAE),
    }
    if "text_encoder" not in but:
        parts["text_encoder"] = CLIPTextModel(CLIPTextConfig(**CLIP))
    if "text_encoder_2" not in but:
        parts["text_encoder_2"] = T5EncoderModel(T5Config(**T5))
    return parts


def qwen_parts(
    token_rows: Mapping[str, int], but: Collection[str] = (), *, zero_cond_t: bool = False
) -> dict[str, nn.Module]:
    """Returns the parts of a Qwen-Image-Edit on torch's default device, but for those named in ``but``.

    Args:
        token_rows: of the tokens that stand for pictures, under their names in ``Qwen2_5_VLConfig``; the released ones
            where they are not given.
        but: names of parts.
        zero_cond_t: references are modulated by time 0, as in Qwen-Image-Edit-2511.
    """
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    parts: dict[str, nn.Module] = {
        "transformer": QwenImageTransformer2DModel(**QWEN_TRANSFORMER, zero_cond_t=zero_cond_t),
        "vae": AutoencoderKLQwenImage(**QWEN_VAE),
    }
    if "text_encoder" not in but:
        rows: dict[str, Any] = dict(token_rows)
        config = Qwen2_5_VLConfig(text_config=dict(QWEN_TEXT), vision_config=dict(QWEN_VISION), **rows)
        parts["text_encoder"] = Qwen2_5_VLForConditionalGeneration(config)
    return parts
