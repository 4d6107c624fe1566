"""What each LoRA preset covers in the released transformers, in a form short enough to read.

After a change that is meant, ``python -m tests.support.lora_golden`` from the root writes the golden files again.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn

from physedit.models import flux_pipeline, qwen_presets
from physedit.models.lora_targets import matching_layers

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = ("flux_kontext", "qwen_image_edit", "qwen_image_edit_2511")
RANK = 16


def build_on_meta(model: str) -> nn.Module:
    """Returns the released architecture without weights."""
    config = json.loads((GOLDEN / "configs" / f"{model}.json").read_text())
    with torch.device("meta"):
        transformer: nn.Module = getattr(diffusers, config.pop("_class_name"))(**config)
    return transformer


def presets_of(model: str, transformer: Any) -> Mapping[str, tuple[str, ...]]:
    """Returns the presets of the backbone that ``model`` belongs to."""
    if model == "flux_kontext":
        return flux_pipeline.LORA_PRESETS
    return qwen_presets.lora_presets(transformer.config.num_layers)


def describe(model: str) -> dict[str, Any]:
    """Returns base and adapter sizes and the collapsed layer names of every preset."""
    transformer = build_on_meta(model)
    presets = {}
    for preset, targets in presets_of(model, transformer).items():
        layers = matching_layers(transformer, targets)
        sizes = [transformer.get_submodule(layer) for layer in layers]
        presets[preset] = {
            "num_layers": len(layers),
            f"num_parameters_at_rank_{RANK}": sum(RANK * (each.in_features + each.out_features) for each in sizes),
            "layers": collapse(layers),
        }
    return {"num_base_parameters": sum(p.numel() for p in transformer.parameters()), "presets": presets}


def collapse(layers: list[str]) -> list[str]:
    """Returns one line for each kind of layer, with its blocks: ``transformer_blocks.0-18.attn.to_q``."""
    blocks: dict[str, list[int]] = {}
    for layer in layers:
        number = re.search(r"(?<=blocks\.)\d+", layer)
        kind = layer if number is None else f"{layer[: number.start()]}#{layer[number.end() :]}"
        blocks.setdefault(kind, []).extend([] if number is None else [int(number[0])])
    return sorted(kind.replace("#", _range(numbers)) for kind, numbers in blocks.items())


def expand(lines: list[str]) -> list[str]:
    """Returns every full name that ``collapse`` was given, sorted."""
    names = []
    for line in lines:
        span = re.search(r"(?<=blocks\.)(\d+)-(\d+)", line)
        if span is None:
            names.append(line)
            continue
        names += [f"{line[: span.start()]}{n}{line[span.end() :]}" for n in range(int(span[1]), int(span[2]) + 1)]
    return sorted(names)


def _range(numbers: list[int]) -> str:
    if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise ValueError(f"The blocks {numbers} are no range.")
    return f"{numbers[0]}-{numbers[-1]}" if numbers else ""


def main() -> None:
    """Writes the golden files."""
    for model in MODELS:
        file = GOLDEN / "lora_targets" / f"{model}.json"
        file.write_text(json.dumps(describe(model), indent=2) + "\n")


if __name__ == "__main__":
    main()
