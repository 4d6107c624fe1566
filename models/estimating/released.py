"""The parts of the released editors on the meta device, from the settings they were released with."""

import torch
from torch import nn


def released_flux() -> dict[str, nn.Module]:
    """Returns FLUX.1-Kontext-dev. Source: its config.json files and the defaults of the classes."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    clip = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768
    )
    t5 = T5Config(
        d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, vocab_size=32128, feed_forward_proj="gated-gelu"
    )
    with torch.device("meta"):
        return {
            "transformer": FluxTransformer2DModel(guidance_embeds=True),
            "vae": AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(128, 256, 512, 512),
                layers_per_block=2,
                latent_channels=16,
                use_quant_conv=False,
                use_post_quant_conv=False,
            ),
            "text_encoder": CLIPTextModel(clip),
            "text_encoder_2": T5EncoderModel(t5),
        }


def released_qwen() -> dict[str, nn.Module]:
    """Returns Qwen-Image-Edit, whose later releases have the same sizes.

    Source: its config.json files and the defaults of the classes.
    """
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4,
    }  # fmt: skip
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
    with torch.device("meta"):
        return {
            "transformer": QwenImageTransformer2DModel(),
            "vae": AutoencoderKLQwenImage(),
            "text_encoder": Qwen2_5_VLForConditionalGeneration(
                Qwen2_5_VLConfig(text_config=text, vision_config=vision)
            ),
        }
