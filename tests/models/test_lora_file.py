"""What training saves, the stock pipelines load: every variant, both families, wrapped or not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tests.support.tiny_transformers import FAMILIES, FLUX, Family, fill, load_stock
from torch import Tensor, nn

from physedit.models.adapter_file import ADAPTER_FILE, AdapterFormat, write_adapter
from physedit.models.flux_kontext import FluxKontext
from physedit.models.flux_pipeline import LORA_PRESETS, load_pipeline
from physedit.models.lora import LoraSettings, adapter_state, add_adapter, unwrapped

ATTENTION = LORA_PRESETS["attention"]
PROMPT = "remove the ball"
VARIANTS = {
    "plain": LoraSettings(4, 4.0),
    "alpha": LoraSettings(4, 16.0),
    "rslora": LoraSettings(4, 6.0, use_rslora=True),
    "dora": LoraSettings(4, 6.0, use_dora=True),
    "dora_rslora": LoraSettings(4, 6.0, dropout=0.5, use_dora=True, use_rslora=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
def test_stock_pipeline_computes_what_was_trained(tmp_path: Path, family: Family, variant: str) -> None:
    settings, transformer = VARIANTS[variant], family.build()
    base = family.forward(transformer)
    add_adapter(transformer, settings, targets=family.presets["all_linear"], seed=0)
    fill(transformer)
    trained = family.forward(transformer)
    assert (trained - base).abs().max() > 0.1
    write_adapter(family.pipeline, adapter_state(transformer), tmp_path, settings.format)
    assert torch.equal(family.forward(load_stock(family, tmp_path)), trained)


# peft says that the file's list of layers, read as endings, would match more than the file holds.
@pytest.mark.filterwarnings("ignore:While injecting the PEFT adapters")
@torch.no_grad()
def test_namesakes_of_a_saved_layer_stay_without_adapter(tmp_path: Path) -> None:
    settings, transformer = LoraSettings(4, 8.0), FLUX.build()
    add_adapter(transformer, settings, targets=("proj_out",), seed=0)
    state = fill(transformer)
    write_adapter(FLUX.pipeline, state, tmp_path, settings.format)
    loaded = load_stock(FLUX, tmp_path, adapter_name="default")
    assert adapter_state(loaded).keys() == state.keys()
    assert torch.equal(FLUX.forward(loaded), FLUX.forward(transformer))


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("variant", ["alpha", "dora"])
@torch.no_grad()
def test_wrapped_model_saves_what_the_stock_pipeline_loads(process_group: None, tmp_path: Path, variant: str) -> None:
    settings, transformer = VARIANTS[variant], FLUX.build()
    base = FLUX.forward(transformer)
    add_adapter(transformer, settings, targets=FLUX.presets["attention_mlp"], seed=0)
    fill(transformer)
    wrapped = nn.parallel.DistributedDataParallel(transformer)
    assert unwrapped(wrapped) is transformer
    write_adapter(FLUX.pipeline, adapter_state(wrapped), tmp_path, settings.format)

    loaded = load_stock(FLUX, tmp_path, adapter_name="default")
    with safe_open(str(tmp_path / ADAPTER_FILE), "pt") as file:
        saved_names = set(file.keys())
    assert saved_names == {f"transformer.{name}" for name in adapter_state(loaded)}
    assert torch.equal(FLUX.forward(loaded), FLUX.forward(wrapped))
    assert not torch.equal(FLUX.forward(loaded), base)


def picture() -> Tensor:
    return torch.randint(0, 256, (3, 64, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def tiny_editor(dtype: str = "float32") -> FluxKontext:
    return FluxKontext(weights="random_tiny", dtype=dtype, max_text_tokens=24, area_px=64 * 48)


def edited(backbone: FluxKontext, denoiser: nn.Module) -> Tensor:
    return backbone.edit(
        denoiser,
        [[picture()]],
        [PROMPT],
        num_steps=3,
        guidance=2.5,
        generators=[torch.Generator().manual_seed(4)],
    )


@pytest.mark.parametrize("preset", LORA_PRESETS)
def test_stock_pipeline_edits_as_the_trained_editor(tmp_path: Path, preset: str) -> None:
    backbone, settings = tiny_editor(), LoraSettings(4, 16.0)
    base = edited(backbone, backbone.denoiser)
    add_adapter(backbone.denoiser, settings, targets=LORA_PRESETS[preset], seed=0)
    fill(backbone.denoiser)
    trained = edited(backbone, backbone.denoiser)
    assert not torch.equal(trained, base)
    backbone.save_adapter(adapter_state(backbone.denoiser), str(tmp_path), settings.format)

    stock = load_pipeline("random_tiny", torch.float32)
    stock.load_lora_weights(str(tmp_path))
    image = stock(
        image=Image.fromarray(picture().permute(1, 2, 0).numpy()),
        prompt=[PROMPT],
        height=64,
        width=48,
        max_area=64 * 48,
        _auto_resize=False,
        max_sequence_length=24,
        num_inference_steps=3,
        guidance_scale=2.5,
        generator=torch.Generator().manual_seed(4),
        output_type="np",
    ).images
    loaded = torch.from_numpy((image * 255).round().astype("uint8")).permute(0, 3, 1, 2)
    # The time embedder's products with one row round by the address of the loaded matrix; all others are exact.
    levels = 1 if preset == "all_linear" else 0
    assert (loaded.int() - trained.int()).abs().max() <= levels


def test_wrapped_model_edits_like_the_bare_one(process_group: None) -> None:
    backbone = tiny_editor()
    add_adapter(backbone.denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
    fill(backbone.denoiser)
    wrapped = nn.parallel.DistributedDataParallel(backbone.denoiser)
    assert torch.equal(edited(backbone, wrapped), edited(backbone, backbone.denoiser))


def test_an_edit_in_the_middle_of_training_drops_nothing_out() -> None:
    pictures = []
    for dropout in (0.0, 0.5):
        backbone = tiny_editor()
        add_adapter(backbone.denoiser, LoraSettings(2, 2.0, dropout=dropout), targets=ATTENTION, seed=0)
        fill(backbone.denoiser)
        backbone.denoiser.train()
        pictures.append(edited(backbone, backbone.denoiser))
        assert backbone.denoiser.training
    assert torch.equal(*pictures)


def test_stored_names_have_the_prefix_and_metadata_is_the_format(tmp_path: Path) -> None:
    backbone, settings = tiny_editor("bfloat16"), LoraSettings(4, 16.0, dropout=0.1, use_rslora=True)
    add_adapter(backbone.denoiser, settings, targets=ATTENTION, seed=0)
    state = adapter_state(backbone.denoiser)
    backbone.save_adapter(state, str(tmp_path), settings.format)
    with safe_open(str(tmp_path / ADAPTER_FILE), "pt") as file:
        assert set(file.keys()) == {f"transformer.{name}" for name in state}
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
        metadata = json.loads(file.metadata()["lora_adapter_metadata"])
    layers = metadata.pop("transformer.target_modules")
    assert len(layers) == len(state) // 2
    assert metadata == {
        "transformer.r": 4,
        "transformer.lora_alpha": 16.0,
        "transformer.use_dora": False,
        "transformer.use_rslora": True,
    }


def test_wrong_rank_is_not_written(tmp_path: Path) -> None:
    backbone = tiny_editor()
    add_adapter(backbone.denoiser, LoraSettings(4, 16.0), targets=ATTENTION, seed=0)
    with pytest.raises(ValueError, match=r"rank 8 was to be used, but \d+ of \d+ matrices"):
        backbone.save_adapter(adapter_state(backbone.denoiser), str(tmp_path), AdapterFormat(8, 16.0))
    assert list(tmp_path.iterdir()) == []
