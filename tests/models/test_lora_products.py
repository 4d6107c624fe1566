"""An adapter that multiplies in bfloat16: over which base it is nothing, what it keeps, and that its weights do not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.memory_editors import EDITORS, Editor, batch_of, edit, gradients, relative_change, velocity
from tests.support.tiny_transformers import FLUX, fill
from torch import Tensor, nn

from physedit.models.adapter_file import ADAPTER_FILE, read_adapter
from physedit.models.lora import LoraSettings, adapter_state, add_adapter, load_state, without_adapter
from physedit.models.lora_products import RoundedProduct

LAYER = "transformer_blocks.0.ff.net.2"
ONE_LAYER = (r"transformer_blocks\.0\.ff\.net\.2",)
FLOAT32, BFLOAT16 = LoraSettings(4, 8.0), LoraSettings(4, 8.0, compute_dtype=torch.bfloat16)
# Relative to the whole; bfloat16 rounds each number by up to 0.4 %. Seen over the same base: velocities 0.0071 (FLUX)
# and 0.0056 (Qwen), a matrix's gradient 0.062 and 0.020 at worst. Against a float32 base, whose rounding to bfloat16 is
# more: velocities 0.0088 and 0.028 with float32 products, 0.0089 and 0.028 with these.
VELOCITY, GRADIENT, NO_FURTHER = 0.014, 0.12, 1.25
NUM_LAYERS = {"flux_kontext": 34, "qwen_image_edit": 20}


@pytest.fixture(params=EDITORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def adapted(name: str, settings: LoraSettings, *, is_filled: bool = True, **options: Any) -> Editor:
    backbone = EDITORS[name](**{"dtype": "bfloat16", **options})
    add_adapter(backbone.denoiser, settings, targets=backbone.lora_presets["attention_mlp"], seed=0)
    if is_filled:
        fill(backbone.denoiser)
    return backbone


def layer_of(settings: LoraSettings, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Returns one adapted layer ``[64] -> [48]`` whose adapter is filled."""
    holder: Any = FLUX.build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        holder.transformer_blocks[0].ff.net[2] = nn.Linear(64, 48).to(dtype)
    add_adapter(holder, settings, targets=ONE_LAYER, seed=0)
    fill(holder)
    layer: nn.Module = holder.get_submodule(LAYER)
    return layer


def inputs_of(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)


def matrix(layer: nn.Module, part: str) -> nn.Parameter:
    found = dict(layer.named_parameters())[f"lora_{part}.default.weight"]
    assert isinstance(found, nn.Parameter)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.no_grad()
def test_a_new_adapter_and_one_switched_off_are_the_base_bit_for_bit(name: str, dtype: str) -> None:
    plain = EDITORS[name](dtype=dtype)
    conditioning = plain.encode(batch_of(1, 2))
    base = velocity(plain, conditioning)
    backbone = adapted(name, BFLOAT16, is_filled=False, dtype=dtype)
    assert torch.equal(velocity(backbone, conditioning), base)
    fill(backbone.denoiser)
    assert not torch.equal(velocity(backbone, conditioning), base)
    with without_adapter(backbone.denoiser):
        assert torch.equal(velocity(backbone, conditioning), base)


def test_a_layer_computes_what_it_computes_under_autocast() -> None:
    outputs, found = [], []
    for settings, is_cast in ((FLOAT32, True), (BFLOAT16, False), (FLOAT32, False)):
        layer, inputs = layer_of(settings), inputs_of().requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            outputs.append(layer(inputs))
        outputs[-1].float().square().sum().backward()
        found.append([inputs.grad, matrix(layer, "A").grad, matrix(layer, "B").grad])
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))


def test_it_is_the_float32_adapter_up_to_the_rounding_of_bfloat16(name: str) -> None:
    exact, rounded = adapted(name, FLOAT32), adapted(name, BFLOAT16)
    conditioning = exact.encode(batch_of(1, 2))
    whole = adapted(name, FLOAT32, dtype="float32")
    with torch.no_grad():
        told = velocity(whole, whole.encode(batch_of(1, 2)))
        one, other = velocity(exact, conditioning), velocity(rounded, conditioning)
        assert 0 < relative_change(one, other) < VELOCITY
        assert relative_change(told, other) < NO_FURTHER * relative_change(told, one)
    expected, found = gradients(exact, conditioning), gradients(rounded, conditioning)
    assert found.keys() == expected.keys()
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert max(relative_change(expected[key], value) for key, value in found.items()) < GRADIENT


@torch.no_grad()
def test_the_stock_pipeline_with_the_saved_adapter_is_the_trained_editor_bit_for_bit(name: str, tmp_path: Path) -> None:
    # In float32 it is not: diffusers brings a loaded adapter to the dtype of the base.
    rounded, stock = adapted(name, BFLOAT16), EDITORS[name](dtype="bfloat16")
    rounded.save_adapter(adapter_state(rounded.denoiser), str(tmp_path), BFLOAT16.format)
    stock._pipeline.load_lora_weights(str(tmp_path))
    conditioning = rounded.encode(batch_of(1))
    expected = velocity(rounded, conditioning)
    assert torch.equal(velocity(stock, conditioning), expected)
    assert torch.equal(edit(stock, batch_of(1).sources[0]), edit(rounded, batch_of(1).sources[0]))
    assert not torch.equal(velocity(adapted(name, FLOAT32), conditioning), expected)


def test_files_names_and_dtypes_are_those_of_float32_products(name: str, tmp_path: Path) -> None:
    written = []
    for folder, settings in (("float32", FLOAT32), ("bfloat16", BFLOAT16)):
        backbone = adapted(name, settings)
        state = adapter_state(backbone.denoiser)
        assert {value.dtype for value in state.values()} == {torch.float32}
        backbone.save_adapter(state, str(tmp_path / folder), settings.format)
        load_state(backbone.denoiser, read_adapter(tmp_path / folder))
        written.append((tmp_path / folder / ADAPTER_FILE).read_bytes())
        assert any(isinstance(each, RoundedProduct) for each in backbone.denoiser.modules()) == (folder == "bfloat16")
    assert written[0] == written[1]


def saved_by(layer: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Returns what waits for the backward pass, weights left out."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):  # type: ignore[func-returns-value]
        layer(inputs)
    return [each for each in kept if len(each) == len(inputs)]


def test_what_waits_for_the_backward_pass_is_the_input_as_it_came() -> None:
    rounded, exact = saved_by(layer_of(BFLOAT16), inputs := inputs_of()), saved_by(layer_of(FLOAT32), inputs)
    assert [(each.shape[-1], each.dtype) for each in rounded] == [(64, torch.bfloat16), (4, torch.bfloat16)]
    assert rounded[0].untyped_storage().data_ptr() == inputs.untyped_storage().data_ptr()
    assert [(each.shape[-1], each.dtype) for each in exact] == [(64, torch.float32), (4, torch.float32)]


@pytest.mark.parametrize("settings", [FLOAT32, BFLOAT16])
def test_no_layer_of_an_editor_keeps_a_float32_copy_of_its_input(name: str, settings: LoraSettings) -> None:
    backbone = adapted(name, settings)
    conditioning = backbone.encode(batch_of(1))
    seen: list[Tensor] = []
    kept: list[Tensor] = []
    for layer in backbone.denoiser.modules():
        if hasattr(layer, "lora_A"):
            layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):  # type: ignore[func-returns-value]
        velocity(backbone, conditioning)
    wide = [each for each in kept if each.dtype == torch.float32]
    copied = [any(torch.equal(each.flatten(), one.float().flatten()) for each in wide) for one in seen]
    assert len(seen) == NUM_LAYERS[name]
    assert all(copied) if settings is FLOAT32 else not any(copied)


def test_an_update_below_the_steps_of_bfloat16_is_not_lost(name: str) -> None:
    backbone = adapted(name, BFLOAT16)
    conditioning = backbone.encode(batch_of(1))
    before = {key: value.clone() for key, value in adapter_state(backbone.denoiser).items()}
    trained = [each for each in backbone.denoiser.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, weight_decay=0.0)
    gradients(backbone, conditioning)
    optimizer.step()
    for key, value in adapter_state(backbone.denoiser).items():
        moved = (value != before[key]).float().mean()
        assert moved > 0.9, key  # entries whose gradient is zero stay
        assert (before[key].bfloat16() == value.bfloat16()).float().mean() > 0.9, key


@torch.no_grad()
def test_dropout_acts_in_training_alone_and_rslora_scales() -> None:
    inputs = inputs_of()
    plain = layer_of(LoraSettings(4, 12.0, compute_dtype=torch.bfloat16)).eval()
    dropped = layer_of(LoraSettings(4, 6.0, dropout=0.5, use_rslora=True, compute_dtype=torch.bfloat16)).eval()
    assert torch.equal(plain(inputs), dropped(inputs))
    assert (dropped.train()(inputs) - plain(inputs)).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_peft_merges_the_whole_product_of_the_float32_matrices(dtype: torch.dtype) -> None:
    exact: Any = layer_of(FLOAT32, dtype)
    rounded: Any = layer_of(BFLOAT16, dtype)
    assert rounded.get_delta_weight("default").dtype == torch.float32
    for layer in (exact, rounded):
        layer.merge()
    assert torch.equal(rounded(inputs_of(dtype)), exact(inputs_of(dtype)))


def test_recomputed_blocks_give_the_same_gradients(name: str) -> None:
    kept, recomputed = adapted(name, BFLOAT16), adapted(name, BFLOAT16, gradient_checkpointing=True)
    conditioning = kept.encode(batch_of(1))
    expected, found = gradients(kept, conditioning), gradients(recomputed, conditioning)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in found.items())


def test_a_layer_compiles_as_a_whole_and_computes_the_same() -> None:
    layer = layer_of(BFLOAT16)
    outputs, found = [], []
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        layer.zero_grad()
        outputs.append(run(inputs_of()))
        outputs[-1].float().square().sum().backward()
        found.append([matrix(layer, part).grad for part in "AB"])
    assert torch.equal(outputs[0], outputs[1])
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))


def test_adding_it_leaves_the_callers_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    layer_of(BFLOAT16)
    assert torch.equal(torch.get_rng_state(), before)


def test_dora_with_rounded_products_is_refused() -> None:
    with pytest.raises(ValueError, match=r"adapter\.compute_dtype=bfloat16 does not go with adapter\.use_dora=true"):
        layer_of(LoraSettings(4, 4.0, use_dora=True, compute_dtype=torch.bfloat16))
