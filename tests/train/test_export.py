"""``physedit export``: what it writes loads in stock diffusers and draws what base and adapter draw."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxKontextPipeline, FluxTransformer2DModel, QwenImageEditPipeline
from safetensors.torch import load_file
from tests.support.adapters import FILE, as_if_of_a_run, write_adapter_of
from torch import Tensor, nn
from typer.testing import CliRunner

import physedit.models
from physedit.models.backbone import Backbone
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.random_tiny import build_random_tiny
from physedit.models.random_tiny_qwen import build_random_tiny_qwen
from physedit.train.cli import app
from physedit.train.config import ConfigError

TOY = Path(physedit.models.__file__).parent / "toy" / "flux_kontext"
TINY = "backbone=random_tiny"
QWEN_AREA_PX = 96 * 96
ONE_LEVEL = 1
"""Float rounding: (W + s B A) x and W x + s B (A x) are summed in another order, so a level of 255 may tip over."""

VISIBLE = 5
KOHYA_TARGETS = {
    # diffusers splits a single block's joined layer at the released model's width alone.
    "flux": (r"transformer_blocks\..*\.(attn|ff|ff_context|norm1|norm1_context)\..*", r".*\.(proj_out|norm\.linear)"),
    "qwen": (r"transformer_blocks\..*",),
}


def flux(weights: str = "random_tiny") -> FluxKontext:
    return FluxKontext(weights=weights, dtype="float32", max_text_tokens=24, area_px=4096)


def qwen(weights: str = "random_tiny") -> QwenImageEdit:
    return QwenImageEdit(
        weights=weights, dtype="float32", pipeline="QwenImageEditPipeline", area_px=QWEN_AREA_PX
    )  # fmt: skip


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout.strip()


def edited(editor: Backbone, denoiser: nn.Module | None = None) -> Tensor:
    coarse = torch.randint(0, 256, (1, 3, 4, 4), generator=torch.Generator().manual_seed(3)).float()
    picture = nn.functional.interpolate(coarse, size=(64, 64), mode="bilinear")[0].to(torch.uint8)
    return editor.edit(
        editor.denoiser if denoiser is None else denoiser, [[picture]], ["Remove the ball."],
        num_steps=3, guidance=editor.default_guidance, generators=[torch.Generator().manual_seed(4)],
    )  # fmt: skip


def difference(one: Tensor, other: Tensor) -> int:
    return int((one.int() - other.int()).abs().max())


def stock_qwen() -> Any:
    return build_random_tiny_qwen(QwenImageEditPipeline, 0, zero_cond_t=False)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter_of(flux(), tmp_path / "adapter", LoraSettings(4, 6.0))


FAMILIES = {
    "flux": (flux, lambda: build_random_tiny(0), [TINY]),
    "qwen": (qwen, stock_qwen, ["backbone=qwen_image_edit", "backbone.weights=random_tiny"]),
}


@pytest.mark.parametrize("form", ["diffusers", "kohya"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("use_rslora", [False, True])
def test_exported_adapters_draw_the_same_in_a_stock_pipeline(
    tmp_path: Path, family: str, form: str, use_rslora: bool
) -> None:
    build, build_stock, base = FAMILIES[family]
    editor = build()
    settings = LoraSettings(4, 6.0, use_rslora=use_rslora)
    file = write_adapter_of(
        editor, tmp_path / "adapter", settings, targets=KOHYA_TARGETS[family] if form == "kohya" else (".*",)
    )
    written = run(file.parent, "--out", tmp_path / "out", "--format", form, *(base if form == "kohya" else []))
    assert Path(written) == tmp_path / "out" / FILE
    stock = build_stock()
    stock.load_lora_weights(tmp_path / "out")
    tuned = edited(editor)
    assert difference(tuned, edited(build())) > VISIBLE
    assert difference(tuned, edited(editor, stock.transformer)) <= ONE_LEVEL


@pytest.mark.parametrize("settings", [LoraSettings(4, 6.0), LoraSettings(3, 3.0, use_dora=True)], ids=["lora", "dora"])
def test_a_merged_pipeline_draws_what_base_and_adapter_draw(tmp_path: Path, settings: LoraSettings) -> None:
    editor = flux("toy")
    file = write_adapter_of(editor, tmp_path / "adapter", settings, size=0.05)
    out = tmp_path / "out"
    assert run(file, "--out", out, "--format", "merged", "backbone=toy") == str(out)
    tuned = edited(editor)
    assert difference(tuned, edited(flux("toy"))) > VISIBLE
    assert difference(tuned, edited(flux(str(out)))) <= ONE_LEVEL
    stock = FluxKontextPipeline.from_pretrained(out)
    assert difference(tuned, edited(flux("toy"), stock.transformer)) <= ONE_LEVEL
    for path in (path for path in TOY.rglob("*") if path.is_file() and path.parent.name != "transformer"):
        assert (out / path.relative_to(TOY)).read_bytes() == path.read_bytes()
    assert "_name_or_path" not in (out / "transformer" / "config.json").read_text()


def test_a_merged_qwen_pipeline_draws_what_base_and_adapter_draw(tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    stock_qwen().save_pretrained(base)
    (base / "LICENSE.md").write_text("Ours.")
    editor = qwen(str(base))
    file = write_adapter_of(editor, tmp_path / "adapter", LoraSettings(4, 6.0))
    run(file, "--out", out, "--format", "merged", "backbone=qwen_image_edit", f"backbone.weights={base}",
        "backbone.dtype=float32")  # fmt: skip
    assert difference(edited(editor), edited(qwen(str(base)))) > VISIBLE
    assert difference(edited(editor), edited(qwen(str(out)))) <= ONE_LEVEL
    assert (out / "LICENSE.md").read_text() == "Ours."


def test_a_merged_transformer_has_the_dtype_of_the_base(adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    run(adapter, "--out", out, "--format", "merged", "--transformer-only", TINY, "backbone.dtype=bfloat16")
    stored = load_file(out / "diffusion_pytorch_model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    FluxTransformer2DModel.from_pretrained(out)
    run(adapter, "--out", tmp_path / "float", "--format", "merged", "--transformer-only", TINY)
    merged = FluxTransformer2DModel.from_pretrained(tmp_path / "float")
    tuned = flux()
    write_adapter_of(tuned, tmp_path / "again", LoraSettings(4, 6.0))
    assert difference(edited(tuned), edited(flux(), merged)) <= ONE_LEVEL


def test_a_checkpoint_of_a_run_brings_its_backbone_and_an_adapter_becomes_a_file(adapter: Path, tmp_path: Path) -> None:
    checkpoint = as_if_of_a_run(adapter, tmp_path / "run", "experiment=smoke", "tracker=none")
    run(checkpoint, "--out", tmp_path / "comfy.safetensors", "--format", "kohya")
    run(adapter, "--out", tmp_path / "loose.safetensors", "--format", "kohya", TINY)
    one, other = (load_file(tmp_path / f"{name}.safetensors") for name in ("comfy", "loose"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    run(checkpoint, "--out", tmp_path / "copy.safetensors", "--format", "diffusers")
    assert (tmp_path / "copy.safetensors").read_bytes() == adapter.read_bytes()


REFUSED = {
    "no such adapter": (["nowhere", "--format", "diffusers"], "nowhere does not exist"),
    "out is not empty": (["adapter", "--format", "diffusers", "--out", "full"], "not empty"),
    "out is a file": (["adapter", "--format", "diffusers", "--out", "full/x.safetensors"], "is a file"),
    "out below a file": (["adapter", "--format", "diffusers", "--out", "full/x.safetensors/y"], "cannot be written"),
    "merged as a file": (["adapter", "--format", "merged", "--out", "x.safetensors", TINY], "names a file"),
    "base stored nowhere": (["adapter", "--format", "merged", TINY], "--transformer-only"),
    "no base": (["adapter", "--format", "merged"], "lies in no run folder"),
    "quantised base": (["adapter", "--format", "merged", "backbone=toy", "backbone.quantization=bnb_nf4"], "=null"),
    "another base": (
        ["adapter", "--format", "merged", "--transformer-only", "backbone=toy"],
        "no adapter of this base",
    ),
    "option of another form": (["adapter", "--format", "kohya", "--transformer-only", TINY], "--format merged"),
    "setting without effect": (["adapter", "--format", "diffusers", TINY], "has no effect"),
    "damaged": (["damaged.safetensors", "--format", "diffusers"], r"damaged\.safetensors .* cannot be read"),
    "DoRA in Kohya's form": (["dora", "--format", "kohya", TINY], "DoRA"),
    "another family": (["adapter", "--format", "kohya", "backbone=toy_qwen_image_edit"], "it is of another editor"),
    "layers without a name": (["all", "--format", "kohya", TINY], r"context_embedder"),
}


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_named_and_nothing_is_written(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/x.safetensors").write_bytes(b"kept")
    Path("damaged.safetensors").write_bytes(adapter.read_bytes()[:-8])
    write_adapter_of(flux(), Path("dora"), LoraSettings(2, 2.0, use_dora=True))
    write_adapter_of(flux(), Path("all"), LoraSettings(2, 2.0), targets=(".*",))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=words):
        run(*given, *([] if "--out" in given else ["--out", "out"]))
    assert sorted(tmp_path.rglob("*")) == before
    assert Path("full/x.safetensors").read_bytes() == b"kept"


def test_a_failed_write_leaves_nothing(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space_left(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("physedit.train.export._save", no_space_left)
    with pytest.raises(OSError, match="No space"):
        run(adapter, "--out", tmp_path / "out", "--format", "merged", "--transformer-only", TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_what_a_killed_process_left_is_named(adapter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = tmp_path / ".x[1].7.partial"
    left.mkdir()
    run(adapter, "--out", tmp_path / "x[1]", "--format", "diffusers")
    assert f"{left} is what a killed process left" in caplog.text
    assert left.is_dir()
