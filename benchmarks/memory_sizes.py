"""Computes what the parts of the released models take, from their parameter counts: arithmetic, nothing is run.

python -m benchmarks.memory_sizes            no weights are needed; the models are built without memory
"""

import argparse
import sys
from dataclasses import dataclass

import torch
from diffusers import AutoencoderKL, AutoencoderKLQwenImage, FluxTransformer2DModel, QwenImageTransformer2DModel
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

from benchmarks.results import Result, add_json_option, report
from physedit.models.flux_pipeline import LORA_PRESETS
from physedit.models.lora_targets import matching_layers
from physedit.models.qwen_presets import lora_presets

GIB = 2**30
RANK = 16
BITS = {"bfloat16": 16.0, "8 bits": 8.0, "bnb_nf4": 4 + 8 / 64 + 32 / (64 * 256)}
"""Bits a weight of a linear layer. NF4 has an 8-bit scale for 64 weights and a float32 one for 256 scales."""
PUBLISHED = {"FLUX.1-Kontext-dev": 11_901_408_320, "Qwen-Image-Edit": 20_430_401_088}
"""Parameters of the transformers. Source: the headers of the models' safetensors files on the hub."""


@dataclass(frozen=True)
class Model:
    """A released model, by part."""

    name: str
    transformer: nn.Module
    text_encoders: tuple[nn.Module, ...]
    vae: nn.Module
    targets: tuple[str, ...]


def main() -> int:
    """Prints one line a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    asked = parser.parse_args()
    results = []
    for model in (flux(), qwen()):
        print(model.name)
        for bits in BITS:
            print(f"  transformer, {bits:9} {transformer_bytes(model.transformer, BITS[bits]) / GIB:6.1f} GiB")
        print(f"  text encoders, bfloat16 {2 * sum(map(num_parameters, model.text_encoders)) / GIB:5.1f} GiB")
        print(f"  VAE, bfloat16           {2 * num_parameters(model.vae) / GIB:5.2f} GiB")
        adapter = num_adapter_parameters(model)
        # float32: the weights, their gradients and AdamW's two averages.
        print(f"  attention_mlp, rank {RANK}: {adapter / 1e6:.1f} M parameters, {16 * adapter / GIB:.2f} GiB to train")
        results.append(
            Result(
                f"parameters of {model.name}'s transformer",
                num_parameters(model.transformer),
                "",
                f"== {PUBLISHED[model.name]}",
            )
        )
    report(results, asked.json)
    return 0


def flux() -> Model:
    """Returns FLUX.1-Kontext-dev. Source: its config.json files and the defaults of the classes."""
    with torch.device("meta"):
        t5 = T5Config(
            d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, vocab_size=32128,
            feed_forward_proj="gated-gelu",
        )  # fmt: skip
        clip = CLIPTextConfig(
            hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768
        )
        return Model(
            "FLUX.1-Kontext-dev",
            FluxTransformer2DModel(guidance_embeds=True),
            (CLIPTextModel(clip), T5EncoderModel(t5)),
            AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(128, 256, 512, 512),
                layers_per_block=2,
                latent_channels=16,
                use_quant_conv=False,
                use_post_quant_conv=False,
            ),
            LORA_PRESETS["attention_mlp"],
        )


def qwen() -> Model:
    """Returns Qwen-Image-Edit. Source: its config.json files and the defaults of the classes."""
    with torch.device("meta"):
        text = {
            "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4,
        }  # fmt: skip
        vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
        return Model(
            "Qwen-Image-Edit",
            QwenImageTransformer2DModel(),
            (Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)),),
            AutoencoderKLQwenImage(),
            lora_presets(60)["attention_mlp"],
        )


def transformer_bytes(transformer: nn.Module, bits: float) -> float:
    """Returns the bytes of a transformer whose linear layers' weights take ``bits`` each, and all else 16."""
    linear = sum(module.weight.numel() for module in transformer.modules() if isinstance(module, nn.Linear))
    return linear * bits / 8 + 2 * (num_parameters(transformer) - linear)


def num_parameters(module: nn.Module) -> int:
    """Returns how many numbers a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def num_adapter_parameters(model: Model) -> int:
    """Returns how many numbers an adapter of rank ``RANK`` has."""
    layers = (model.transformer.get_submodule(name) for name in matching_layers(model.transformer, model.targets))
    return sum(RANK * (layer.in_features + layer.out_features) for layer in layers)  # type: ignore[operator, misc]


if __name__ == "__main__":
    sys.exit(main())
