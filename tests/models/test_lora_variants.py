"""DoRA, rsLoRA and dropout as peft has them, and gradients with and without checkpointing."""

from typing import Any

import pytest
import torch
from tests.support.tiny_transformers import FAMILIES, FLUX, Family, fill
from torch import Tensor, nn

from physedit.models.lora import LoraSettings, adapter_state, add_adapter, without_adapter

LAYER = "transformer_blocks.0.ff.net.2"
ONE_LAYER = (r"transformer_blocks\.0\.ff\.net\.2",)


def adapted(family: Family, settings: LoraSettings, preset: str = "attention_mlp") -> nn.Module:
    transformer = family.build()
    add_adapter(transformer, settings, targets=family.presets[preset], seed=0)
    return transformer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("use_dora", [False, True])
@torch.no_grad()
def test_new_adapter_is_the_base_bit_for_bit(dtype: torch.dtype, use_dora: bool) -> None:
    layer = nn.Linear(64, 48).to(dtype)
    holder: Any = FLUX.build()
    holder.transformer_blocks[0].ff.net[2] = layer
    inputs = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    base = layer(inputs)
    add_adapter(holder, LoraSettings(4, 6.0, use_dora=use_dora), targets=ONE_LAYER, seed=0)
    assert torch.equal(holder.get_submodule(LAYER)(inputs), base)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
def test_new_dora_adapter_is_the_base_of_the_whole_transformer(family: Family) -> None:
    transformer = adapted(family, LoraSettings(4, 6.0, use_dora=True), "all_linear")
    with_zero_b = family.forward(transformer)
    with without_adapter(transformer):
        assert torch.equal(family.forward(transformer), with_zero_b)


@torch.no_grad()
def test_dora_scales_rows_to_the_learned_magnitudes() -> None:
    transformer = FLUX.build()
    weight = transformer.get_submodule(LAYER).weight.clone()
    settings = LoraSettings(4, 6.0, use_dora=True, use_rslora=True)
    report = add_adapter(transformer, settings, targets=ONE_LAYER, seed=0)
    assert report.names == tuple(
        f"{LAYER}.{part}" for part in ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")
    )
    assert (report.num_layers, report.num_parameters) == (1, 4 * (128 + 32) + 32)
    assert torch.equal(adapter_state(transformer)[report.names[2]], weight.norm(dim=1))
    a, b, magnitude = fill(transformer).values()
    whole = weight + settings.format.scale * b @ a
    inputs = torch.randn(5, 128, generator=torch.Generator().manual_seed(1))
    layer = transformer.get_submodule(LAYER)
    expected = inputs @ (magnitude[:, None] * whole / whole.norm(dim=1, keepdim=True)).T + layer.bias
    assert torch.allclose(layer(inputs), expected, atol=1e-5)  # other order of sums


@torch.no_grad()
def test_rslora_scales_by_the_root_of_the_rank() -> None:
    outputs = []
    for settings in (LoraSettings(4, 12.0), LoraSettings(4, 6.0, use_rslora=True)):
        transformer = adapted(FLUX, settings)
        fill(transformer)
        outputs.append(FLUX.forward(transformer))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_dropout_out_of_range_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=r"adapter\.dropout must be at least 0 and below 1"):
        adapted(FLUX, LoraSettings(4, 4.0, dropout=dropout))


@pytest.mark.parametrize("use_dora", [False, True])
@torch.no_grad()
def test_dropout_acts_in_training_alone(use_dora: bool) -> None:
    transformer = adapted(FLUX, LoraSettings(4, 4.0, dropout=0.5, use_dora=use_dora))
    fill(transformer)
    plain = adapted(FLUX, LoraSettings(4, 4.0, use_dora=use_dora))
    fill(plain)
    in_evaluation = FLUX.forward(transformer)
    assert torch.equal(in_evaluation, FLUX.forward(plain))
    assert (FLUX.forward(transformer.train()) - in_evaluation).abs().max() > 0.01


def gradients(family: Family, transformer: nn.Module) -> dict[str, Tensor]:
    transformer.zero_grad()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        family.forward(transformer).square().mean().backward()
    return {name: p.grad.clone() for name, p in transformer.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("settings", [LoraSettings(4, 8.0), LoraSettings(4, 8.0, dropout=0.5, use_dora=True)])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_gradients_are_those_without_checkpointing(family: Family, settings: LoraSettings) -> None:
    transformer = adapted(family, settings).train()
    fill(transformer)
    expected = gradients(family, transformer)
    transformer.enable_gradient_checkpointing()
    found = gradients(family, transformer)
    assert len(found) == len(adapter_state(transformer))
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        # Relative to the matrix; the recomputed values are the same, their sums may be ordered otherwise.
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


@pytest.mark.parametrize("preset", ["attention", "attention_mlp", "image_stream", "all_linear"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_layer_of_every_preset_gets_a_gradient(family: Family, preset: str) -> None:
    transformer = adapted(family, LoraSettings(4, 4.0), preset)
    fill(transformer)
    silent = [name for name, gradient in gradients(family, transformer).items() if gradient.abs().max() == 0]
    assert silent == []
