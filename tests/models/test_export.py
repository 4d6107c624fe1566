"""Other forms of an adapter: what the loaders of other programs and the merged base compute with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxKontextPipeline
from safetensors.torch import load_file
from tests.support.tiny_transformers import FAMILIES, FLUX, QWEN, Family, fill, load_stock
from torch import Tensor, nn

from physedit.models.adapter_file import AdapterFormat
from physedit.models.export import export_kohya, kohya_tensors, merge_adapter
from physedit.models.lora import LoraSettings, adapter_state, add_adapter

VARIANTS = {
    "plain": LoraSettings(4, 4.0),
    "alpha": LoraSettings(3, 12.0),
    "rslora": LoraSettings(4, 6.0, use_rslora=True),
    "dora": LoraSettings(4, 6.0, use_dora=True, use_rslora=True),
}
WITHOUT_DORA = ["plain", "alpha", "rslora"]
FILE = "adapter_kohya.safetensors"
SINGLE_BLOCK_OUTPUTS = {"attn.to_q": 3072, "attn.to_k": 3072, "attn.to_v": 3072, "proj_mlp": 12288}
# diffusers splits a single block's joined layer at the released model's width alone.
KOHYA_TARGETS = {
    "flux": (r"transformer_blocks\.\d+\.(attn\.(to_([qkv]|out\.0|add_out)|add_[qkv]_proj)|ff.*|norm1.*)",
             r"single_transformer_blocks\.\d+\.(proj_out|norm\.linear)"),
    "qwen_image": QWEN.presets["all_linear"],
}  # fmt: skip


def trained(family: Family, settings: LoraSettings, targets: tuple[str, ...]) -> tuple[nn.Module, dict[str, Tensor]]:
    transformer = family.build()
    add_adapter(transformer, settings, targets=targets, seed=0)
    fill(transformer)
    return transformer, adapter_state(transformer)


def difference(one: Tensor, other: Tensor) -> float:
    """Returns the largest difference, relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("variant", WITHOUT_DORA)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
def test_stock_pipeline_computes_the_same_from_kohyas_form(tmp_path: Path, family: Family, variant: str) -> None:
    settings = VARIANTS[variant]
    transformer, state = trained(family, settings, KOHYA_TARGETS[family.name])
    export_kohya(state, settings.format, family.name, tmp_path / "new" / FILE)
    loaded = family.forward(load_stock(family, tmp_path / "new", weight_name=FILE))
    assert difference(loaded, family.forward(transformer)) < 1e-5
    assert difference(loaded, family.forward(family.build())) > 0.1


@pytest.mark.parametrize("layers", [("attn.to_k",), ("attn.to_q", "attn.to_v"), tuple(SINGLE_BLOCK_OUTPUTS)])
@pytest.mark.parametrize("rank", [3, 4])
def test_joined_layer_of_a_single_block_is_split_again(tmp_path: Path, layers: tuple[str, ...], rank: int) -> None:
    generator = torch.Generator().manual_seed(4)
    state = {}
    for layer in layers:
        name, num_outputs = f"single_transformer_blocks.7.{layer}", SINGLE_BLOCK_OUTPUTS[layer]
        state[f"{name}.lora_A.weight"] = torch.randn(rank, 3072, generator=generator)
        state[f"{name}.lora_B.weight"] = torch.randn(num_outputs, rank, generator=generator)
    export_kohya(state, AdapterFormat(rank, 2.0 * rank), "flux", tmp_path / FILE)
    loaded = FluxKontextPipeline.lora_state_dict(str(tmp_path), weight_name=FILE)
    assert len(loaded) == 2 * len(SINGLE_BLOCK_OUTPUTS)
    for layer in SINGLE_BLOCK_OUTPUTS:
        name = f"single_transformer_blocks.7.{layer}"
        a, b = (loaded[f"transformer.{name}.lora_{part}.weight"] for part in "AB")
        if layer in layers:
            expected = 2.0 * state[f"{name}.lora_B.weight"] @ state[f"{name}.lora_A.weight"]
            assert difference(b @ a, expected) < 1e-5, layer
        else:
            assert b.abs().max() == 0, layer


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_names_and_alpha_are_those_that_comfyui_looks_for(tmp_path: Path, family: Family) -> None:
    settings = LoraSettings(4, 6.0, use_rslora=True)
    _, state = trained(family, settings, family.presets["attention_mlp"])
    export_kohya(state, settings.format, family.name, tmp_path / FILE)
    stored = load_file(tmp_path / FILE)
    expected = {
        "flux": {
            "double_blocks_0_img_attn_qkv": 12, "double_blocks_0_txt_attn_qkv": 12, "double_blocks_2_img_attn_proj": 4,
            "double_blocks_0_txt_mlp_2": 4, "single_blocks_1_linear1": 16, "single_blocks_1_linear2": 4,
        },
        "qwen_image": {
            "transformer_blocks_0_attn_to_q": 4, "transformer_blocks_2_attn_add_k_proj": 4,
            "transformer_blocks_1_attn_to_out_0": 4, "transformer_blocks_2_img_mlp_net_0_proj": 4,
        },
    }[family.name]  # fmt: skip
    for layer, rank in expected.items():
        assert stored[f"lora_unet_{layer}.lora_down.weight"].shape[0] == rank
        assert stored[f"lora_unet_{layer}.lora_up.weight"].shape[1] == rank
        assert stored[f"lora_unet_{layer}.alpha"].item() / rank == pytest.approx(settings.format.scale)
    assert {value.dtype for value in stored.values()} == {torch.float32}


def test_dora_in_kohyas_form_is_refused(tmp_path: Path) -> None:
    settings = VARIANTS["dora"]
    _, state = trained(FLUX, settings, FLUX.presets["attention"])
    with pytest.raises(ValueError, match="DoRA adapter cannot be written in Kohya's form"):
        export_kohya(state, settings.format, "flux", tmp_path / "new" / FILE)
    assert list(tmp_path.iterdir()) == []


def test_layers_without_a_name_in_kohyas_form_are_refused() -> None:
    settings = VARIANTS["plain"]
    _, state = trained(FLUX, settings, (".*attn.to_q", "x_embedder"))
    with pytest.raises(ValueError, match=r"covers x_embedder, which diffusers ignores"):
        kohya_tensors(state, settings.format, "flux")


def test_unknown_family_is_refused() -> None:
    unknown: Any = "sdxl"
    with pytest.raises(ValueError, match="family 'sdxl' was asked for; known are flux, qwen_image"):
        kohya_tensors({}, AdapterFormat(2, 2.0), unknown)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
def test_merged_base_computes_what_base_and_adapter_do(family: Family, variant: str) -> None:
    settings = VARIANTS[variant]
    transformer, state = trained(family, settings, family.presets["all_linear"])
    merged = family.build()
    merge_adapter(merged, state, settings.format)
    assert difference(family.forward(merged), family.forward(transformer)) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_merging_rounds_once_to_the_bases_dtype(variant: str) -> None:
    settings = VARIANTS[variant]
    _, state = trained(FLUX, settings, FLUX.presets["attention"])
    half, exact = FLUX.build().to(torch.bfloat16), FLUX.build().to(torch.bfloat16).float()
    for transformer in (half, exact):
        merge_adapter(transformer, state, settings.format)
    for (name, value), expected in zip(half.named_parameters(), exact.parameters(), strict=True):
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, expected.to(torch.bfloat16)), name


def replaced(layer: nn.Linear, how: str) -> nn.Module:
    if how == "quantised":
        layer.weight = nn.Parameter(layer.weight.data.to(torch.int8), requires_grad=False)
        return layer
    if how == "of another size":
        return nn.Linear(layer.in_features, 2 * layer.out_features)

    class Packed(nn.Linear):
        """As the layers of a quantising library are."""

    return Packed(layer.in_features, layer.out_features)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("quantised", r"to_q is quantised \(Tensor of torch\.int8\)"),
        ("another class", r"to_q is a .*Packed, not a plain linear layer"),
        ("of another size", r"to_q has a weight of \(64, 32\), but the adapter is for one of \(32, 32\)"),
    ],
)
def test_base_that_cannot_be_merged_into_is_left_alone(how: str, message: str) -> None:
    settings = VARIANTS["plain"]
    _, state = trained(FLUX, settings, FLUX.presets["attention"])
    base: Any = FLUX.build()
    block = base.transformer_blocks[2].attn
    block.to_q = replaced(block.to_q, how)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        merge_adapter(base, state, settings.format)
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


def test_adapted_or_foreign_transformer_is_refused() -> None:
    settings = VARIANTS["plain"]
    transformer, state = trained(FLUX, settings, FLUX.presets["attention"])
    with pytest.raises(ValueError, match="neither quantised nor adapted"):
        merge_adapter(transformer, state, settings.format)
    with pytest.raises(ValueError, match=r"QwenImageTransformer2DModel has no layer single_transformer_blocks"):
        merge_adapter(QWEN.build(), state, settings.format)


@torch.no_grad()
def test_half_an_adapter_is_refused() -> None:
    settings = VARIANTS["plain"]
    _, state = trained(FLUX, settings, FLUX.presets["attention"])
    del state["transformer_blocks.1.attn.to_k.lora_B.weight"]
    with pytest.raises(
        ValueError, match=r"only one of both matrices is there for \['transformer_blocks\.1\.attn\.to_k"
    ):
        merge_adapter(FLUX.build(), state, settings.format)
