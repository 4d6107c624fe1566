"""Which weights and settings make a Qwen-Image-Edit backbone, what names it, and that its adapter trains."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from tests.support.qwen_editors import (
    AREA_PX,
    PLUS,
    PROMPT,
    V1,
    VISION_AREA_PX,
    batch_of,
    build,
    joined,
    picture,
    pictures,
    recorded,
)
from torch import Tensor

import physedit.models
from physedit.models import random_tiny_qwen
from physedit.models.lora import LoraSettings, adapter_state, add_adapter, load_state
from physedit.models.parts import EncodersAbsentError
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.qwen_pipeline import EditPipeline, load_pipeline, working_at
from physedit.models.random_tiny_qwen import build_random_tiny_qwen

PIPELINES: tuple[EditPipeline, ...] = (V1, PLUS)
KONTEXT_TOY = Path(physedit.models.__file__).parent / "toy" / "flux_kontext"


def save(pipeline: EditPipeline, folder: Path) -> str:
    build_random_tiny_qwen(getattr(diffusers, pipeline), 0, zero_cond_t=False).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(V1, tmp_path_factory.mktemp("v1"))


def edit(backbone: QwenImageEdit, num_steps: int = 2, guidance: float = 4.0) -> Tensor:
    return backbone.edit(
        backbone.denoiser,
        [pictures(1)],
        [PROMPT],
        num_steps=num_steps,
        guidance=guidance,
        generators=[torch.Generator().manual_seed(1)],
    )


def test_a_saved_folder_is_the_same_editor(folder: str) -> None:
    QwenImageEdit.check_weights(folder)
    saved, random = build(V1, weights=folder), build(V1)
    batch = batch_of(pictures(1))
    first, second = saved.encode(batch), random.encode(batch)
    assert torch.equal(first.target, second.target)
    assert torch.equal(first.text["prompts"], second.text["prompts"])
    assert torch.equal(edit(saved), edit(random))


def test_fingerprint_of_a_folder_is_that_of_its_files(folder: str, tmp_path: Path) -> None:
    same, other = save(V1, tmp_path / "same"), save(V1, tmp_path / "other")
    vae = Path(other) / "vae" / "config.json"
    vae.write_text(vae.read_text(encoding="utf-8").replace("-0.7571", "-0.7572"), encoding="utf-8")
    expected = build(V1, weights=folder).fingerprint
    assert build(V1, weights=same).fingerprint == expected
    assert build(V1, weights=other).fingerprint != expected


def test_fingerprint_names_dtype_pipeline_and_areas_but_no_adapter() -> None:
    backbones = [
        build(V1),
        build(V1, "bfloat16"),
        build(V1, area_px=128 * 128),
        build(PLUS),
        build(PLUS, area_px=128 * 128),
        build(PLUS, vision_area_px=128 * 128),
    ]
    assert len({backbone.fingerprint for backbone in backbones}) == len(backbones)
    again = build(V1, gradient_checkpointing=True, edit_guidance=2.0)
    add_adapter(again.denoiser, LoraSettings(2, 2.0), targets=again.lora_presets["attention"], seed=1)
    assert again.fingerprint == backbones[0].fingerprint


def test_weights_of_the_other_pipeline_are_refused(folder: str, tmp_path: Path) -> None:
    message = f"holds a {V1}, but this backbone needs a {PLUS}. Choose the backbone"
    with pytest.raises(ValueError, match=message):
        build(PLUS, weights=folder)
    with pytest.raises(ValueError, match=f"holds a {PLUS}, but this backbone needs a {V1}"):
        build(V1, weights=save(PLUS, tmp_path))


def test_weights_of_another_family_are_refused_before_loading() -> None:
    with pytest.raises(ValueError, match=f"holds a FluxKontextPipeline, but this backbone needs a {V1} or a {PLUS}"):
        QwenImageEdit.check_weights(str(KONTEXT_TOY))


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("processor_config.json", "processor in .* cannot be loaded"),
        ("tokenizer_config.json", "no token to pad with"),
    ],
)
def test_a_processor_with_a_hole_is_refused(folder: str, tmp_path: Path, gone: str, said: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "processor" / gone).unlink()
    with pytest.raises(ValueError, match=said):
        QwenImageEdit(weights=str(copy), dtype="float32", pipeline=V1, area_px=AREA_PX)
    with pytest.raises(ValueError, match=said):
        QwenImageEdit.outline({"weights": str(copy), "pipeline": V1, "area_px": AREA_PX})


def test_the_toy_is_refused_where_several_pictures_are_needed() -> None:
    with pytest.raises(ValueError, match=r"Use backbone=qwen_image_edit, or backbone\.weights=random_tiny"):
        build(PLUS, weights="toy")


@pytest.mark.parametrize(
    ("pipeline", "options", "message"),
    [
        (V1, {"dtype": "float16"}, "backbone.dtype is 'float16'"),
        (V1, {"weights": "./absent"}, "backbone.weights is './absent'"),
        (V1, {"area_px": 31 * 31}, "backbone.area_px is 961"),
        (V1, {"area_px": 5 * 1024 * 1024}, "backbone.area_px is 5242880"),
        (V1, {"area_px": 3 * 1024 * 1024}, "no more positions for text"),
        (V1, {"vision_area_px": 384 * 384}, "leave it out there"),
        (PLUS, {"vision_area_px": None}, "needs it, 147456 as released"),
        (PLUS, {"vision_area_px": 1024 * 1024}, "backbone.vision_area_px is 1048576"),
        (V1, {"encoders": "elsewhere"}, "backbone.encoders is 'elsewhere'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(pipeline: EditPipeline, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(pipeline, **options)


def test_an_embedded_guidance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    make = random_tiny_qwen._build_transformer

    def guided(zero_cond_t: bool) -> Any:
        transformer = make(zero_cond_t)
        transformer.register_to_config(guidance_embeds=True)
        return transformer

    monkeypatch.setattr(random_tiny_qwen, "_build_transformer", guided)
    with pytest.raises(ValueError, match="guidance_embeds"):
        build(V1)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_tokenizer_that_does_not_fit_the_template_is_refused(
    pipeline: EditPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = random_tiny_qwen.build_tokenizer

    def finer(vocabulary: tuple[str, ...]) -> Any:
        tokenizer = make(vocabulary)
        return type(tokenizer)(
            vocab=tokenizer.get_vocab(), merges=[], extra_special_tokens=tokenizer.init_kwargs["extra_special_tokens"]
        )

    monkeypatch.setattr(random_tiny_qwen, "build_tokenizer", finer)
    with pytest.raises(ValueError, match="The tokenizer does not belong to this pipeline"):
        build(pipeline)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_negative_prompt_counts_with_guidance_above_1_alone(pipeline: EditPipeline) -> None:
    plain, other = build(pipeline, edit_guidance=2.5), build(pipeline, negative_prompt="A blurred picture.")
    assert (plain.default_guidance, other.default_guidance) == (2.5, 4.0)
    assert not torch.equal(edit(plain), edit(other))
    assert torch.equal(edit(plain, guidance=1.0), edit(other, guidance=1.0))


def test_an_edit_of_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="Take at least 2 steps"):
        edit(build(V1), num_steps=1)


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
def test_one_step_of_the_stock_pipeline_is_not_a_number() -> None:
    stock = load_pipeline(V1, "random_tiny", torch.float32)
    stock.scheduler.set_timesteps(sigmas=[1.0], mu=0.7)
    assert torch.isnan(stock.scheduler.sigmas[0])


def test_a_pipeline_of_another_name_is_refused() -> None:
    name: Any = "QwenImagePipeline"
    with pytest.raises(ValueError, match=r"backbone\.pipeline is 'QwenImagePipeline'; it must be one of"):
        build(name)


@pytest.mark.parametrize(
    ("pipeline", "module"), [(V1, pipeline_qwenimage_edit), (PLUS, pipeline_qwenimage_edit_plus)], ids=PIPELINES
)
def test_areas_are_put_back_after_an_error(pipeline: EditPipeline, module: Any) -> None:
    stock = load_pipeline(pipeline, "random_tiny", torch.float32)
    written = module.calculate_dimensions
    with working_at(stock, AREA_PX, VISION_AREA_PX):
        assert module.calculate_dimensions(1024 * 1024, 1.0)[:2] == (96, 96)
    with pytest.raises(KeyError, match="262144"), working_at(stock, AREA_PX, VISION_AREA_PX):
        module.calculate_dimensions(512 * 512, 1.0)  # an area of which nothing is known
    assert module.calculate_dimensions is written


def test_released_areas_change_nothing() -> None:
    stock = load_pipeline(PLUS, "random_tiny", torch.float32)
    written = pipeline_qwenimage_edit_plus.calculate_dimensions
    with working_at(stock, 1024 * 1024, 384 * 384):
        assert pipeline_qwenimage_edit_plus.calculate_dimensions is written


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_offloaded_encoders_make_the_same(pipeline: EditPipeline) -> None:
    resident, offloaded = build(pipeline), build(pipeline, encoders="offload")
    batch = batch_of(pictures(1))
    first, second = resident.encode(batch), offloaded.encode(batch)
    assert torch.equal(first.target, second.target)
    assert torch.equal(first.text["prompts"], second.text["prompts"])
    assert torch.equal(edit(resident), edit(offloaded))
    assert offloaded._pipeline.text_encoder is not None


def test_absent_encoders_are_not_loaded_and_refuse_to_encode(folder: str) -> None:
    backbone = build(V1, weights=folder, encoders="absent")
    assert backbone._pipeline.text_encoder is None
    with pytest.raises(EncodersAbsentError, match="encoders=absent"):
        backbone.encode(batch_of(pictures(1)))


def trained(pipeline: EditPipeline, preset: str, **options: Any) -> tuple[QwenImageEdit, dict[str, Tensor]]:
    """Returns the backbone after one backward pass through a batch of two, and the gradients by name."""
    backbone = build(pipeline, **options)
    add_adapter(backbone.denoiser, LoraSettings(2, 4.0), targets=backbone.lora_presets[preset], seed=0)
    generator = torch.Generator().manual_seed(1)
    state = adapter_state(backbone.denoiser)
    load_state(backbone.denoiser, {n: 0.1 * torch.randn(v.shape, generator=generator) for n, v in state.items()})
    backbone.denoiser.train()
    batch = joined(batch_of([picture(101, 67, 1)]), batch_of([picture(101, 67, 2)], PROMPT + " Make it night."))
    conditioning = backbone.encode(batch)
    noise = torch.randn(conditioning.target.shape, generator=generator)
    velocity = backbone.velocity(backbone.denoiser, noise, torch.tensor([0.7, 0.3]), conditioning)
    assert velocity.dtype == torch.float32
    velocity.square().mean().backward()
    return backbone, {n: p.grad for n, p in backbone.denoiser.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("preset", ["attention", "attention_mlp", "image_stream", "all_linear"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_only_the_adapter_trains_and_all_of_it_does(pipeline: EditPipeline, preset: str) -> None:
    backbone, gradients = trained(pipeline, preset)
    assert len(gradients) == len(adapter_state(backbone.denoiser)) > 0
    assert all("lora_" in name and gradient.abs().max() > 0 for name, gradient in gradients.items())
    for part in (backbone._pipeline.vae, backbone._pipeline.text_encoder):
        assert not any(parameter.requires_grad for parameter in part.parameters())


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_gradient_checkpointing_changes_no_gradient(pipeline: EditPipeline) -> None:
    _, plain = trained(pipeline, "attention_mlp")
    backbone, recomputed = trained(pipeline, "attention_mlp", gradient_checkpointing=True)
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
    conditioning = backbone.encode(batch_of(pictures(1)))
    with recorded(backbone.denoiser.transformer_blocks[0].img_mlp) as calls:
        noise = torch.zeros_like(conditioning.target)
        backbone.velocity(backbone.denoiser, noise, torch.tensor([0.7]), conditioning).mean().backward()
    assert len(calls) == 2  # once forward, once again


def test_adapter_stays_float32_over_a_bfloat16_base_and_trains() -> None:
    backbone, gradients = trained(PLUS, "attention_mlp", dtype="bfloat16")
    dtypes: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for name, parameter in backbone.denoiser.named_parameters():
        dtypes["lora_" in name].add(parameter.dtype)
    assert dtypes == {True: {torch.float32}, False: {torch.bfloat16}}
    assert all(gradient.dtype == torch.float32 and gradient.abs().max() > 0 for gradient in gradients.values())


def in_new_process(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})


def test_a_pinned_hub_id_is_found_in_the_cache_without_a_network(tmp_path: Path) -> None:
    commit = "ac7f9318f633fc4b5778c59367c8128225f1e3de"
    weights = f"Qwen/Qwen-Image-Edit@{commit}"
    save(V1, tmp_path / "hub" / "models--Qwen--Qwen-Image-Edit" / "snapshots" / commit)
    code = (
        "from physedit.models.qwen_image_edit import QwenImageEdit;"
        f"QwenImageEdit(weights='{weights}', dtype='float32', pipeline='{V1}', area_px=4096)"
    )
    done = in_new_process(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr


def test_importing_the_modules_does_not_import_diffusers() -> None:
    modules = ", ".join(f"physedit.models.qwen_{name}" for name in ("image_edit", "pipeline", "text", "positions"))
    code = f"import sys, {modules};sys.exit(','.join({{'diffusers', 'transformers', 'peft'}} & set(sys.modules)) or 0)"
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr
