import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, FluxKontextPipeline
from torch import nn

import physedit.models.toy as toy
from physedit.data_loaders.scenes.scene import LAWS, VOCABULARY, draw_scene
from physedit.models.toy.architecture import build_untrained_pipeline
from physedit.models.toy.build import BuildSize, build
from physedit.models.toy.fitting import FitPlan, fit, learning_rate, load_average
from physedit.models.toy.pairs import as_network_input, draw_pairs, load_pairs, save_pairs
from physedit.models.toy.set_encoder import PatchComponents, analyse_patches, code_of, read_components, set_encoder
from physedit.models.toy.train_base import draw_sigma, tokenise
from physedit.models.toy.word_pieces import (
    CLIP_TOKENS,
    T5_TOKENS,
    bare_words,
    build_t5_tokenizer,
    learn_merges,
    same_word_rows,
    spellings,
)

FOLDER = Path(toy.__file__).parent / "flux_kontext"
LIMIT_BYTES = 7_000_000


@pytest.fixture(scope="module")
def shipped() -> FluxKontextPipeline:
    pipeline = FluxKontextPipeline.from_pretrained(FOLDER)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def untrained() -> FluxKontextPipeline:
    return build_untrained_pipeline(VOCABULARY, seed=0)


def _edit(pipeline: FluxKontextPipeline, source: np.ndarray, prompts: list[str]) -> np.ndarray:
    return pipeline(
        image=torch.from_numpy(source).permute(0, 3, 1, 2).float() / 255,
        prompt=prompts,
        height=64,
        width=64,
        max_area=4096,
        _auto_resize=False,
        max_sequence_length=T5_TOKENS,
        num_inference_steps=8,
        guidance_scale=2.5,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).images


def test_shipped_folder_stays_small_and_names_no_machine() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= LIMIT_BYTES
    configs = [path for path in files if path.suffix == ".json"]
    assert len(configs) == 10
    assert all("_name_or_path" not in json.loads(path.read_text(encoding="utf-8")) for path in configs)


def test_shipped_pipeline_has_the_architecture_of_the_builder(
    shipped: FluxKontextPipeline, untrained: FluxKontextPipeline
) -> None:
    for name in ("vae", "transformer", "text_encoder", "text_encoder_2"):
        part, expected = getattr(shipped, name), getattr(untrained, name)
        assert type(part) is type(expected)
        assert {k: v.shape for k, v in part.state_dict().items()} == {
            k: v.shape for k, v in expected.state_dict().items()
        }
        assert {value.dtype for value in part.parameters()} == {torch.float32}
    assert shipped.tokenizer.get_vocab() == untrained.tokenizer.get_vocab()
    assert shipped.tokenizer_2.get_vocab() == untrained.tokenizer_2.get_vocab()


def test_shipped_editor_does_what_it_is_told_and_leaves_the_rest(shipped: FluxKontextPipeline) -> None:
    scenes = [draw_scene(law, 900_001) for law in LAWS]
    source = np.stack([scene.source for scene in scenes])
    edited = _edit(shipped, source, [scene.superficial_prompt for scene in scenes])
    naive = np.stack([scene.naive for scene in scenes]) / 255
    errors = ((edited - naive) ** 2).mean(axis=(1, 2, 3))
    undone = ((source / 255 - naive) ** 2).mean(axis=(1, 2, 3))
    # An edit must be far nearer to the naive target than the unedited source is.
    assert (errors < 0.3 * undone).all(), dict(zip(LAWS, errors / undone, strict=True))


def test_other_spellings_of_a_prompt_give_the_same_states(shipped: FluxKontextPipeline) -> None:
    prompts = ["Remove the red box.", "remove the red box.", "REMOVE THE RED BOX.", "remove the Red box"]
    states, pooled, _ = shipped.encode_prompt(prompts, max_sequence_length=T5_TOKENS)
    assert torch.equal(states, states[:1].expand_as(states))
    # The CLIP sequence counts the full stop, so only the first three pool alike.
    assert torch.equal(pooled[:3], pooled[:1].expand_as(pooled[:3]))


def test_every_prompt_of_the_scenes_is_read_whole_and_word_by_word(untrained: FluxKontextPipeline) -> None:
    scenes = [draw_scene(law, seed) for law in LAWS for seed in range(40)]
    prompts = {p for s in scenes for p in (s.superficial_prompt, s.intermediate_prompt, s.explicit_prompt)}
    assert len(prompts) > 100
    for prompt in prompts:
        words = bare_words(prompt).split()
        assert len(untrained.tokenizer_2(prompt).input_ids) == len(words) + 1 <= T5_TOKENS
        assert len(untrained.tokenizer(prompt).input_ids) <= CLIP_TOKENS
        assert [piece for piece in untrained.tokenizer.tokenize(prompt) if piece[0].isalpha()] == [
            word + "</w>" for word in words
        ]


def test_unknown_words_fall_apart_into_letters(untrained: FluxKontextPipeline) -> None:
    assert untrained.tokenizer.tokenize("xq") == ["x", "q</w>"]
    assert untrained.tokenizer_2.tokenize("the xq") == ["▁the", "▁", "x", "q"]


def test_each_spelling_shares_a_row_with_its_bare_word() -> None:
    tokenizer = build_t5_tokenizer(("red", "a"))
    rows = same_word_rows(tokenizer, ("red", "a"))
    assert len(rows) == len(spellings("red")) - 1 + len(spellings("a")) - 1 == 8 + 5
    pieces = tokenizer.convert_ids_to_tokens([row for pair in rows for row in pair])
    assert set(pieces[0::2]) == {"▁red", "▁a"}
    assert len(set(pieces[1::2])) == 13


def test_set_encoder_computes_the_patch_code(untrained: FluxKontextPipeline) -> None:
    pictures = as_network_input(draw_pairs(24, seed=1).pictures)
    components = analyse_patches(pictures, 16)
    autoencoder = AutoencoderKL.from_config(untrained.vae.config)
    set_encoder(autoencoder, components)
    with torch.no_grad():
        mode = autoencoder.encode(pictures).latent_dist.mode()
    latents = (mode - autoencoder.config.shift_factor) * autoencoder.config.scaling_factor
    # The final norm's scale moves by the components' variance over twice the pinned one: below 1e-4 of a value of 12.
    torch.testing.assert_close(latents, code_of(components, pictures), atol=1.2e-3, rtol=0)
    assert latents.var(dim=(0, 2, 3)).mean().item() == pytest.approx(1, abs=0.3)


def test_set_components_are_read_back(untrained: FluxKontextPipeline) -> None:
    components = analyse_patches(as_network_input(draw_pairs(6, seed=1).pictures), 16)
    autoencoder = AutoencoderKL.from_config(untrained.vae.config)
    set_encoder(autoencoder, components)
    assert torch.equal(read_components(autoencoder).directions, components.directions)
    assert torch.equal(read_components(autoencoder).offsets, components.offsets)


def test_code_of_one_patch_is_its_projection() -> None:
    picture = torch.linspace(-1, 1, 48).reshape(1, 4, 4, 3).permute(0, 3, 1, 2)  # (dy, dx, colour) rises evenly
    components = PatchComponents(directions=torch.eye(16, 48), offsets=torch.full((16,), 0.5))
    torch.testing.assert_close(code_of(components, picture)[0, :, 0, 0], torch.linspace(-1, 1, 48)[:16] + 0.5)


def test_same_seed_gives_the_same_untrained_weights(untrained: FluxKontextPipeline) -> None:
    again, other = build_untrained_pipeline(VOCABULARY, seed=0), build_untrained_pipeline(VOCABULARY, seed=1)
    name = "single_transformer_blocks.0.proj_out.weight"
    weight = untrained.transformer.state_dict()[name]
    assert torch.equal(weight, again.transformer.state_dict()[name])
    assert not torch.equal(weight, other.transformer.state_dict()[name])


def test_pairs_survive_the_file(tmp_path: Path) -> None:
    pairs = draw_pairs(6, seed=0)
    save_pairs(pairs, tmp_path / "pairs.npz")
    loaded = load_pairs(tmp_path / "pairs.npz")
    assert loaded.prompts == pairs.prompts
    assert torch.equal(loaded.pictures, pairs.pictures)


def test_training_latents_are_those_of_the_pipeline(shipped: FluxKontextPipeline) -> None:
    pairs = draw_pairs(6, seed=0)
    tokens = tokenise(shipped, pairs)
    pictures = as_network_input(torch.cat([pairs.source, pairs.source.flip(-1)]))
    with torch.no_grad():
        latents = shipped._encode_vae_image(pictures, generator=None)
    # float16 storage rounds the final norm's scale by 1e-4, of a value of 12.
    torch.testing.assert_close(tokens.source, shipped._pack_latents(latents, *latents.shape), atol=2e-3, rtol=0)
    torch.testing.assert_close(tokens.weight.mean(dim=1), torch.ones(12, 1))


def test_drawn_sigma_is_shifted_towards_noise() -> None:
    sigma = draw_sigma(20_000, shift=3.0, generator=torch.Generator().manual_seed(0))
    # The median of a shifted logit-normal is shift * 0.5 / (1 + (shift - 1) * 0.5); three standard errors are 0.01.
    assert sigma.median().item() == pytest.approx(0.75, abs=0.01)


def test_learning_rate_rises_stays_and_falls() -> None:
    plan = FitPlan("plan", num_steps=1000, peak_rate=2.0, seed=0)
    assert learning_rate(plan, 0) == pytest.approx(0.02)
    assert learning_rate(plan, 500) == 2.0
    assert learning_rate(plan, 999) == pytest.approx(2.0 / 350)


def _fit_layer(num_steps: int, snapshot: Path) -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    plan = FitPlan("layer", num_steps=num_steps, peak_rate=0.1, seed=0)
    fit(plan, layer, lambda generator: layer(torch.randn(4, 3, generator=generator)).square().mean(), snapshot)
    assert load_average(snapshot, layer) == num_steps
    return layer.weight.detach()


def test_a_fit_that_goes_on_from_a_snapshot_equals_one_in_one_go(tmp_path: Path) -> None:
    # Ten steps lie within the warm-up of a hundred, where the rates of a short and a long plan agree.
    _fit_layer(6, tmp_path / "resumed.pt")
    resumed = _fit_layer(10, tmp_path / "resumed.pt")
    assert torch.equal(resumed, _fit_layer(10, tmp_path / "at_once.pt"))


def test_words_merge_by_frequency_then_alphabet() -> None:
    assert learn_merges(("be", "bed", "red")) == [("e", "d</w>"), ("b", "e</w>"), ("b", "ed</w>"), ("r", "ed</w>")]


@pytest.mark.slow
def test_the_build_makes_a_working_folder_and_the_same_bytes_again(tmp_path: Path) -> None:
    size = BuildSize(num_scenes=14, decoder_steps=2, base_steps=2)
    for name in ("first", "second"):
        build(tmp_path / name, tmp_path / f"{name}.work", seed=0, size=size)
    first, second = _bytes_of(tmp_path / "first"), _bytes_of(tmp_path / "second")
    assert first == second
    pipeline = FluxKontextPipeline.from_pretrained(tmp_path / "first")
    pipeline.set_progress_bar_config(disable=True)
    edited = _edit(pipeline, np.zeros((1, 64, 64, 3), dtype=np.uint8), ["Remove the red box."])
    assert edited.shape == (1, 64, 64, 3)
    assert np.isfinite(edited).all()


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
