"""An adapter in other forms: under Kohya's names, which ComfyUI and diffusers read, and merged into its base.

Kohya's form has ``lora_down`` (A), ``lora_up`` (B) and ``alpha`` a layer; every loader scales by ``alpha / rank``.
FLUX layers go by the names of the original model, where q, k, v (and in single blocks the feed-forward) are one layer:
its matrices are those of the parts side by side, A stacked and B on the diagonal, so the product is the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from physedit.models.adapter_file import AdapterFormat, check_fit
from physedit.models.lora_targets import shortened

Family = Literal["flux", "qwen_image"]
"""Whose transformer an adapter is of: FLUX.1 (Kontext) or Qwen-Image (Edit)."""
_FLUX_BLOCK = re.compile(r"(?P<kind>single_transformer|transformer)_blocks\.(?P<number>\d+)\.(?P<layer>.+)")
_QKV = (1, 1, 1)
_QKV_AND_MLP = (1, 1, 1, 4)
"""Outputs of the parts of a joined layer, in widths of the model. Source: FluxSingleTransformerBlock, diffusers."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a layer lies in the original model: in which layer, as which of its parts."""

    layer: str
    part: int = 0
    widths: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The tensors of one adapted layer: A ``[rank, in]``, B ``[out, rank]``, and DoRA's magnitudes ``[out]``."""

    a: Tensor
    b: Tensor
    magnitude: Tensor | None


_FLUX_PLACES = {
    "transformer": {
        "attn.to_q": _Place("img_attn_qkv", 0, _QKV),
        "attn.to_k": _Place("img_attn_qkv", 1, _QKV),
        "attn.to_v": _Place("img_attn_qkv", 2, _QKV),
        "attn.add_q_proj": _Place("txt_attn_qkv", 0, _QKV),
        "attn.add_k_proj": _Place("txt_attn_qkv", 1, _QKV),
        "attn.add_v_proj": _Place("txt_attn_qkv", 2, _QKV),
        "attn.to_out.0": _Place("img_attn_proj"),
        "attn.to_add_out": _Place("txt_attn_proj"),
        "ff.net.0.proj": _Place("img_mlp_0"),
        "ff.net.2": _Place("img_mlp_2"),
        "ff_context.net.0.proj": _Place("txt_mlp_0"),
        "ff_context.net.2": _Place("txt_mlp_2"),
        "norm1.linear": _Place("img_mod_lin"),
        "norm1_context.linear": _Place("txt_mod_lin"),
    },
    "single_transformer": {
        "attn.to_q": _Place("linear1", 0, _QKV_AND_MLP),
        "attn.to_k": _Place("linear1", 1, _QKV_AND_MLP),
        "attn.to_v": _Place("linear1", 2, _QKV_AND_MLP),
        "proj_mlp": _Place("linear1", 3, _QKV_AND_MLP),
        "proj_out": _Place("linear2"),
        "norm.linear": _Place("modulation_lin"),
    },
}
"""Source: the key map of _convert_kohya_flux_lora_to_diffusers, diffusers loaders/lora_conversion_utils.py."""
_QWEN_LAYER = re.compile(
    r"img_in|txt_in|proj_out|norm_out\.linear|time_text_embed\.timestep_embedder\.linear_[12]|transformer_blocks\.\d+\."
    r"(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|(img|txt)_mlp\.net\.(0\.proj|2)|(img|txt)_mod\.1)"
)
"""Source: the linear layers of QwenImageTransformer2DModel, diffusers."""
_ORIGINAL_BLOCKS = {"transformer": "double_blocks", "single_transformer": "single_blocks"}


def export_kohya(state: Mapping[str, Tensor], adapter_format: AdapterFormat, family: Family, file: Path) -> None:
    """Writes the adapter as one float32 safetensors file in Kohya's form.

    Args:
        state: tensors by the names of ``lora.adapter_state``.
        adapter_format: rank, alpha and variant of ``state``; rsLoRA's factor goes into alpha.
        family: whose transformer ``state`` is of.
        file: the file to write; its folder is made.

    Raises:
        ValueError: DoRA, layers that this form has no name for, or tensors that are not of that format.
    """
    tensors = kohya_tensors(state, adapter_format, family)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file, metadata={"format": "pt"})


def kohya_tensors(state: Mapping[str, Tensor], adapter_format: AdapterFormat, family: Family) -> dict[str, Tensor]:
    """Returns what ``export_kohya`` writes: float32 on the CPU. Pure.

    Raises:
        ValueError: as ``export_kohya``.
    """
    if family not in get_args(Family):
        raise ValueError(f"The family '{family}' was asked for; known are {', '.join(get_args(Family))}.")
    if adapter_format.use_dora:
        raise ValueError(
            "A DoRA adapter cannot be written in Kohya's form, because diffusers ignores its magnitudes there; merge "
            "it into the base instead."
        )
    check_fit(state, adapter_format)
    pairs = _pairs(state)
    joined = _flux_layers(pairs) if family == "flux" else _qwen_layers(pairs)
    tensors = {}
    for name, pair in joined.items():
        tensors[f"lora_unet_{name}.lora_down.weight"] = pair.a
        tensors[f"lora_unet_{name}.lora_up.weight"] = pair.b
        tensors[f"lora_unet_{name}.alpha"] = torch.tensor(adapter_format.scale * len(pair.a))
    return tensors


@torch.no_grad()
def merge_adapter(transformer: nn.Module, state: Mapping[str, Tensor], adapter_format: AdapterFormat) -> None:
    """Adds the adapter to the base's weights in place, so that no adapter is needed.

    The sum is computed in float32 on the weight's device and rounded once to the weight's dtype.

    Args:
        transformer: a bare base without adapter, in float32, bfloat16 or float16.
        state: tensors by the names of ``lora.adapter_state``.
        adapter_format: rank, alpha and variant of ``state``.

    Raises:
        ValueError: a layer that is quantised, adapted, missing or of another size, or tensors that are not of that
            format; no weight was changed then.
    """
    check_fit(state, adapter_format)
    pairs = _pairs(state)
    weights = {name: _plain_weight(transformer, name, pair) for name, pair in pairs.items()}
    for name, weight in weights.items():
        pair = pairs[name]
        a, b = pair.a.to(weight.device), pair.b.to(weight.device)
        whole = weight.float() + adapter_format.scale * (b @ a)
        if pair.magnitude is not None:
            whole *= (pair.magnitude.to(weight.device) / torch.linalg.norm(whole, dim=1))[:, None]
        weight.copy_(whole)


def _pairs(state: Mapping[str, Tensor]) -> dict[str, _Pair]:
    plain = {name: value.detach().to("cpu", torch.float32).contiguous() for name, value in state.items()}
    layers = dict.fromkeys(name.rpartition(".lora_")[0] for name in plain)
    return {
        layer: _Pair(
            plain[f"{layer}.lora_A.weight"],
            plain[f"{layer}.lora_B.weight"],
            plain.get(f"{layer}.lora_magnitude_vector"),
        )
        for layer in layers
    }


def _flux_layers(pairs: Mapping[str, _Pair]) -> dict[str, _Pair]:
    """Returns the matrices by the original model's layers, the parts of joined ones put together."""
    parts: dict[str, dict[int, _Pair]] = {}
    widths: dict[str, tuple[int, ...]] = {}
    nameless = []
    for name, pair in pairs.items():
        found = _FLUX_BLOCK.fullmatch(name)
        place = _FLUX_PLACES[found["kind"]].get(found["layer"]) if found else None
        if found is None or place is None:
            nameless.append(name)
            continue
        layer = f"{_ORIGINAL_BLOCKS[found['kind']]}_{found['number']}_{place.layer}"
        parts.setdefault(layer, {})[place.part] = pair
        widths[layer] = place.widths
    if nameless:
        raise ValueError(
            f"The adapter covers {shortened(nameless)}, which diffusers ignores in Kohya's form; merge it into the "
            "base instead, or train with adapter.preset=attention_mlp."
        )
    return {
        layer: found[0] if len(widths[layer]) == 1 else _side_by_side(found, widths[layer])
        for layer, found in parts.items()
    }


def _qwen_layers(pairs: Mapping[str, _Pair]) -> dict[str, _Pair]:
    """Returns the matrices by the model's own layers, whose points are written as underscores."""
    if foreign := [name for name in pairs if not _QWEN_LAYER.fullmatch(name)]:
        raise ValueError(
            f"The adapter covers {shortened(foreign)}, which a Qwen-Image transformer does not have, so it is of "
            "another editor. Choose the editor that it was trained on with backbone=NAME."
        )
    return {name.replace(".", "_"): pair for name, pair in pairs.items()}


def _side_by_side(parts: Mapping[int, _Pair], widths: tuple[int, ...]) -> _Pair:
    """Returns the pair whose product is the parts' products one below the other, zero where there is no part."""
    present = sorted(parts)
    num_inputs = parts[present[0]].a.shape[1]
    rank = parts[present[0]].a.shape[0]
    b = torch.zeros(sum(widths) * num_inputs, rank * len(present))
    for column, part in enumerate(present):
        row = sum(widths[:part]) * num_inputs
        found = parts[part].b
        assert len(found) == widths[part] * num_inputs
        b[row : row + len(found), column * rank : (column + 1) * rank] = found
    return _Pair(torch.cat([parts[part].a for part in present]), b, None)


def _plain_weight(transformer: nn.Module, name: str, pair: _Pair) -> Tensor:
    try:
        layer = transformer.get_submodule(name)
    except AttributeError as error:
        raise ValueError(
            f"{type(transformer).__name__} has no layer {name}. Merge into the base that the adapter was trained on."
        ) from error
    if type(layer) is not nn.Linear:
        raise ValueError(
            f"{name} is a {type(layer).__module__}.{type(layer).__name__}, not a plain linear layer. Merge into a base "
            "that is neither quantised nor adapted."
        )
    weight, wanted = layer.weight, (pair.b.shape[0], pair.a.shape[1])
    if type(weight) is not nn.Parameter or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"The weight of {name} is quantised ({type(weight.data).__name__} of {weight.dtype}). Load the base in "
            "float32 or bfloat16 to merge."
        )
    if tuple(weight.shape) != wanted:
        raise ValueError(f"{name} has a weight of {tuple(weight.shape)}, but the adapter is for one of {wanted}.")
    return weight
