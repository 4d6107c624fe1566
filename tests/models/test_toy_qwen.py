import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageEditPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit
from PIL import Image
from transformers import Qwen2Tokenizer

import physedit.models.toy as toy
from physedit.data_loaders.scenes.scene import LAWS, VOCABULARY, draw_scene
from physedit.models.qwen_positions import own_positions
from physedit.models.qwen_processor import PictureProcessor, load_processor
from physedit.models.toy.pairs import NaivePairs, as_network_input, draw_pairs
from physedit.models.toy.qwen.architecture import build_untrained_pipeline
from physedit.models.toy.qwen.build import build
from physedit.models.toy.qwen.folder import load_pipeline
from physedit.models.toy.qwen.set_encoder import read_components, set_encoder
from physedit.models.toy.qwen.text import PREFIX_TOKENS, TEMPLATE, VISION_START, same_word_rows, spellings
from physedit.models.toy.qwen.train_base import encode_prompts, patches_of, picture_statistics, tokenise
from physedit.models.toy.qwen.train_decoder import take_single_frames
from physedit.models.toy.set_encoder import analyse_patches, code_of
from physedit.models.toy.work import BuildSize

TOYS = Path(toy.__file__).parent
FOLDER = TOYS / "qwen_image_edit"
LIMIT_BYTES = 5_800_000
BOTH_TOYS_LIMIT_BYTES = 13_000_000


@pytest.fixture(scope="module")
def pairs() -> NaivePairs:
    return draw_pairs(7, seed=1)


@pytest.fixture(scope="module")
def untrained(pairs: NaivePairs) -> QwenImageEditPipeline:
    """Random weights, but the encoder is set, and every spelling has its word's embedding."""
    pipeline = build_untrained_pipeline(VOCABULARY, seed=0)
    set_encoder(pipeline.vae, analyse_patches(as_network_input(pairs.pictures), 16))
    embeddings = pipeline.text_encoder.get_input_embeddings().weight.data
    for learnt, spelling in same_word_rows(pipeline.tokenizer, VOCABULARY):
        embeddings[spelling] = embeddings[learnt]
    own_positions(pipeline.text_encoder)
    return pipeline


@pytest.fixture(scope="module")
def shipped() -> QwenImageEditPipeline:
    pipeline = load_pipeline(FOLDER)
    own_positions(pipeline.text_encoder)
    return pipeline


@pytest.fixture
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the stock pipeline edit pictures of 64 pixels at their own size."""
    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda area, ratio: (64, 64, None))


def _edit(pipeline: QwenImageEditPipeline, source: np.ndarray, prompts: list[str]) -> np.ndarray:
    pipeline.set_progress_bar_config(disable=True)
    edited: np.ndarray = pipeline(
        image=[Image.fromarray(picture) for picture in source],
        prompt=prompts,
        num_inference_steps=8,
        true_cfg_scale=1.0,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).images
    return edited


def test_weights_of_both_toys_stay_small_and_name_no_machine() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= LIMIT_BYTES
    both = [path for path in TOYS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in both) <= BOTH_TOYS_LIMIT_BYTES
    configs = [path for path in files if path.suffix == ".json"]
    assert len(configs) == 11
    assert all("_name_or_path" not in json.loads(path.read_text(encoding="utf-8")) for path in configs)
    assert all("physedit" not in path.read_text(encoding="utf-8") for path in configs)


def test_shipped_pipeline_has_the_architecture_of_the_builder(
    shipped: QwenImageEditPipeline, untrained: QwenImageEditPipeline
) -> None:
    for name in ("vae", "transformer", "text_encoder"):
        part, expected = getattr(shipped, name), getattr(untrained, name)
        assert type(part) is type(expected)
        assert {k: v.shape for k, v in part.state_dict().items()} == {
            k: v.shape for k, v in expected.state_dict().items()
        }
        assert {value.dtype for value in part.parameters()} == {torch.float32}
    assert shipped.tokenizer.get_vocab() == untrained.tokenizer.get_vocab()
    assert _settings(shipped.scheduler) == _settings(untrained.scheduler)
    assert isinstance(load_processor(FOLDER), PictureProcessor)


@pytest.mark.usefixtures("small_pictures")
def test_shipped_editor_does_what_it_is_told_and_leaves_the_rest(shipped: QwenImageEditPipeline) -> None:
    scenes = [draw_scene(law, 900_001) for law in LAWS]
    source = np.stack([scene.source for scene in scenes])
    edited = _edit(shipped, source, [scene.superficial_prompt for scene in scenes])
    naive = np.stack([scene.naive for scene in scenes]) / 255
    errors = ((edited - naive) ** 2).mean(axis=(1, 2, 3))
    undone = ((source / 255 - naive) ** 2).mean(axis=(1, 2, 3))
    # An edit must be far nearer to the naive target than the unedited source is.
    assert (errors < 0.3 * undone).all(), dict(zip(LAWS, errors / undone, strict=True))


def test_shipped_decoder_shows_what_the_encoder_saw(shipped: QwenImageEditPipeline) -> None:
    pictures = as_network_input(torch.from_numpy(np.stack([draw_scene(law, 900_002).physical for law in LAWS])))
    pictures = pictures.permute(0, 3, 1, 2)
    with torch.no_grad():
        latents = shipped.vae.encode(pictures[:, :, None]).latent_dist.mode()
        decoded = shipped.vae.decode(latents, return_dict=False)[0][:, :, 0]
    decibel = 10 * (4 / (decoded - pictures).square().mean(dim=(1, 2, 3))).log10()
    assert decibel.min().item() > 36, decibel


def test_template_is_the_pipelines_and_its_prefix_has_the_tokens_that_are_dropped(
    untrained: QwenImageEditPipeline,
) -> None:
    assert untrained.prompt_template_encode == TEMPLATE
    assert untrained.prompt_template_encode_start_idx == PREFIX_TOKENS == 64
    tokens = untrained.tokenizer.tokenize(TEMPLATE.format("Remove the red box."))
    assert tokens[PREFIX_TOKENS] == VISION_START
    assert tokens[PREFIX_TOKENS + 3 :] == [
        *("Remove", "Ġthe", "Ġred", "Ġbox", "."),
        *("<|im_end|>", "Ċ", "<|im_start|>", "assistant", "Ċ"),
    ]


def test_every_spelling_of_every_word_is_one_token(untrained: QwenImageEditPipeline) -> None:
    tokenizer: Qwen2Tokenizer = untrained.tokenizer
    for word in VOCABULARY:
        assert all(len(tokenizer(spelling).input_ids) == 1 for spelling in spellings(word))
    assert len(spellings("red")) == 6
    assert len(same_word_rows(tokenizer, ("red", "box"))) == 10


def test_unknown_words_fall_apart_and_none_is_lost(untrained: QwenImageEditPipeline) -> None:
    text = "Éclipse the xq €"
    assert untrained.tokenizer.decode(untrained.tokenizer(text).input_ids) == text


def test_other_spellings_of_a_prompt_give_the_same_states(shipped: QwenImageEditPipeline) -> None:
    pictures = [Image.fromarray(draw_scene("Reflection", 900_001).source)] * 3
    prompts = ["Remove the red box.", "remove The red Box.", "REMOVE THE RED BOX."]
    states, _ = shipped.encode_prompt(image=pictures, prompt=prompts)
    assert torch.equal(states, states[:1].expand_as(states))


def test_text_states_of_training_are_those_of_the_pipeline(untrained: QwenImageEditPipeline, pairs: NaivePairs) -> None:
    tokens = tokenise(untrained, pairs)
    mean, std = picture_statistics(untrained)
    patches = patches_of((pairs.source.float() / 255 - mean) / std)
    pictures = [Image.fromarray(picture.permute(1, 2, 0).numpy()) for picture in pairs.source]
    for level in range(3):
        prompts = [triple[level] for triple in pairs.prompts]
        with torch.no_grad():
            expected, expected_mask = untrained.encode_prompt(image=pictures, prompt=prompts)
            rows = torch.full((len(prompts),), level), torch.arange(len(prompts))
            states, mask = encode_prompts(untrained.text_encoder, patches, tokens, rows)
        assert torch.equal(mask, torch.ones_like(mask) if expected_mask is None else expected_mask)
        assert torch.equal(states[mask.bool()], expected[mask.bool()])


def test_training_latents_are_those_of_the_pipeline(untrained: QwenImageEditPipeline, pairs: NaivePairs) -> None:
    tokens = tokenise(untrained, pairs)
    pictures = as_network_input(torch.cat([pairs.source, pairs.source.flip(-1)]))
    with torch.no_grad():
        latents = untrained._encode_vae_image(pictures[:, :, None], generator=None)[:, :, 0]
    packed = untrained._pack_latents(latents, *latents.shape)
    # The SiLU's curvature: 3e-5 of the square of a component, which stays below 13.
    torch.testing.assert_close(tokens.source, packed, atol=6e-3, rtol=0)
    torch.testing.assert_close(tokens.weight.mean(dim=1), torch.ones(14, 1))


def test_set_encoder_computes_the_patch_code_even_when_stored_in_float16(
    untrained: QwenImageEditPipeline, pairs: NaivePairs
) -> None:
    pictures = as_network_input(pairs.pictures)
    components = analyse_patches(pictures, 16)
    autoencoder = AutoencoderKLQwenImage.from_config(untrained.vae.config)
    set_encoder(autoencoder, components)
    torch.testing.assert_close(read_components(autoencoder).directions, components.directions)
    torch.testing.assert_close(read_components(autoencoder).offsets, components.offsets)
    autoencoder.encoder.half().float()
    autoencoder.quant_conv.half().float()
    with torch.no_grad():
        mode = autoencoder.encode(pictures[:, :, None]).latent_dist.mode()[:, :, 0]
    config = autoencoder.config
    std, mean = (torch.tensor(value)[:, None, None] for value in (config.latents_std, config.latents_mean))
    code = code_of(read_components(autoencoder), pictures)
    torch.testing.assert_close((mode - mean) / std, code, atol=6e-3, rtol=0)
    assert ((mode - mean) / std - code).square().mean().sqrt().item() < 3e-4


def test_latent_statistics_cannot_be_forgotten_unnoticed(shipped: QwenImageEditPipeline) -> None:
    config = shipped.vae.config
    assert min(abs(value) for value in config.latents_mean) >= 0.25
    assert len(set(config.latents_std)) == 5


def test_one_frame_needs_only_the_last_temporal_tap(untrained: QwenImageEditPipeline) -> None:
    decoder = AutoencoderKLQwenImage.from_config(untrained.vae.config).decoder
    latents = torch.randn(2, 16, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = decoder(latents)
        take_single_frames(decoder)
        torch.testing.assert_close(decoder(latents), expected, atol=2e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pictures")
def test_the_build_makes_a_working_folder_and_the_same_bytes_again(tmp_path: Path) -> None:
    size = BuildSize(num_scenes=14, decoder_steps=2, base_steps=2)
    for name in ("first", "second"):
        build(tmp_path / name, tmp_path / f"{name}.work", seed=0, size=size)
    first, second = _bytes_of(tmp_path / "first"), _bytes_of(tmp_path / "second")
    assert first == second
    edited = _edit(load_pipeline(tmp_path / "first"), np.zeros((1, 64, 64, 3), dtype=np.uint8), ["Remove the red box."])
    assert edited.shape == (1, 64, 64, 3)
    assert np.isfinite(edited).all()


def _settings(scheduler: FlowMatchEulerDiscreteScheduler) -> dict[str, object]:
    return {name: value for name, value in scheduler.config.items() if not name.startswith("_")}


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
