import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from physedit.models.flux_kontext import FluxKontext
from physedit.models.flux_pipeline import load_pipeline
from physedit.models.pipeline_folder import check_pipeline_folder
from physedit.models.random_tiny import build_random_tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    build_random_tiny(0).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_whole_folder_is_accepted_until_a_part_is_gone(folder: Path) -> None:
    FluxKontext.check_weights(str(folder))
    shutil.rmtree(folder / "vae")
    with pytest.raises(ValueError, match="vae"):
        FluxKontext.check_weights(str(folder))


@pytest.mark.parametrize("weights", ["toy", "random_tiny"])
def test_shipped_weights_are_accepted_and_load(weights: str) -> None:
    FluxKontext.check_weights(weights)
    editor = FluxKontext(weights=weights, dtype="float32", max_text_tokens=24, area_px=4096)
    assert editor.sizes_of(64, 64).output == (64, 64)
    assert type(editor.denoiser).__name__ == "FluxTransformer2DModel"


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("tokenizer/tokenizer.json", "tokenizer.json, vocab.json or spiece.model"),
        ("tokenizer_2/tokenizer_config.json", "tokenizer_config.json"),
        ("scheduler/scheduler_config.json", "scheduler_config.json"),
        ("vae/config.json", "config.json"),
        ("text_encoder_2/model.safetensors", "*.safetensors or *.bin"),
        ("transformer/diffusion_pytorch_model.safetensors", "*.safetensors or *.bin"),
    ],
)
def test_missing_file_is_named(folder: Path, gone: str, named: str) -> None:
    (folder / gone).unlink()
    part = gone.partition("/")[0]
    with pytest.raises(ValueError, match=rf"part {part} \(.*has no {re.escape(named)}.*download it again"):
        FluxKontext.check_weights(str(folder))


def test_missing_part_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer_2")
    with pytest.raises(ValueError, match=r"names the part tokenizer_2 .*download it again"):
        FluxKontext.check_weights(str(folder))


def test_vocabulary_needs_its_merges(folder: Path) -> None:
    (folder / "tokenizer/tokenizer.json").rename(folder / "tokenizer/vocab.json")
    with pytest.raises(ValueError, match=r"has no merges\.txt"):
        check_pipeline_folder(folder, "FluxKontextPipeline")
    (folder / "tokenizer/merges.txt").touch()
    check_pipeline_folder(folder, "FluxKontextPipeline")


def test_missing_shard_is_named(folder: Path) -> None:
    weight_map = {"a": "diffusion_pytorch_model.safetensors", "b": "second.safetensors"}
    index = folder / "transformer/diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"has no second\.safetensors"):
        check_pipeline_folder(folder, "FluxKontextPipeline")


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_index_without_parts_is_refused(folder: Path, text: str) -> None:
    (folder / "model_index.json").write_text(text)
    with pytest.raises(ValueError, match=r"model_index\.json .*download it again"):
        FluxKontext.check_weights(str(folder))


@pytest.mark.parametrize(
    "name",
    [
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "text_encoder/model.safetensors",
        "tokenizer_2/tokenizer.json",
    ],
)
@pytest.mark.parametrize("left", [0, 100])
def test_truncated_file_is_one_paragraph(folder: Path, name: str, left: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:left])
    with pytest.raises(ValueError, match=r"copy' cannot be loaded as a FluxKontextPipeline: \w+: "):
        load_pipeline(folder, torch.float32)


def test_folder_of_another_pipeline_is_refused_before_and_while_loading(folder: Path) -> None:
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("FluxKontextPipeline", "FluxPipeline"))
    for read in (FluxKontext.check_weights, lambda path: load_pipeline(path, torch.float32)):
        with pytest.raises(ValueError, match=r"holds a FluxPipeline, but this backbone needs a FluxKontextPipeline"):
            read(str(folder))


@pytest.mark.parametrize(
    "file",
    [
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
        "text_encoder_2/model.safetensors",
    ],
)
def test_a_weight_that_no_file_holds_is_refused_and_not_drawn(folder: Path, file: str) -> None:
    stored = load_file(folder / file)
    lost = next(name for name in stored if name.endswith("layer_norm.weight") or "norm" in name)
    save_file({name: value for name, value in stored.items() if name != lost}, folder / file, {"format": "pt"})
    with pytest.raises(ValueError, match=rf"its {file.partition('/')[0]} lacks {re.escape(lost)}"):
        load_pipeline(folder, torch.float32)


def halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("transformer/diffusion_pytorch_model.safetensors", r"safetensors \(\d+ bytes\) cannot be read"),
        ("vae/diffusion_pytorch_model.safetensors", r"safetensors \(\d+ bytes\) cannot be read"),
        ("vae/config.json", "config.json cannot be read"),
    ],
)
def test_a_file_that_was_cut_off_is_named_before_loading(folder: Path, file: str, said: str) -> None:
    halved(folder / file)
    with pytest.raises(ValueError, match=rf"part {file.partition('/')[0]} .*is damaged: .*{said}"):
        FluxKontext.check_weights(str(folder))


@pytest.mark.parametrize("file", ["scheduler/scheduler_config.json", "transformer/config.json"])
@pytest.mark.parametrize("content", ["{}", "[]"])
def test_a_config_without_a_class_is_refused_and_not_filled_with_defaults(
    folder: Path, file: str, content: str
) -> None:
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=rf"{Path(file).name} names no class"):
        FluxKontext.check_weights(str(folder))
