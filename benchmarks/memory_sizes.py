"""Computes what the parts of the released models take, from their parameter counts: arithmetic, nothing is run.

python -m benchmarks.memory_sizes            no weights are needed; the models are built without memory
"""

import argparse
import sys
from dataclasses import dataclass

from torch import nn

from benchmarks.results import Result, add_json_option, report
from physedit.models.estimating.released import released_flux, released_qwen
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
    """Returns FLUX.1-Kontext-dev."""
    return as_model("FLUX.1-Kontext-dev", released_flux(), LORA_PRESETS["attention_mlp"])


def qwen() -> Model:
    """Returns Qwen-Image-Edit."""
    return as_model("Qwen-Image-Edit", released_qwen(), lora_presets(60)["attention_mlp"])


def as_model(name: str, parts: dict[str, nn.Module], targets: tuple[str, ...]) -> Model:
    """Returns the model of a pipeline's parts."""
    text_encoders = tuple(part for each, part in parts.items() if each.startswith("text_encoder"))
    return Model(name, parts["transformer"], text_encoders, parts["vae"], targets)


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
