"""Training equals inference: what reaches the transformer in training is what the stock pipelines pass."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from diffusers import QwenImageEditPipeline
from tests.support.qwen_editors import (
    AREA_PX,
    DTYPES,
    PLUS,
    PROMPT,
    SEED,
    V1,
    VISION_AREA_PX,
    Call,
    Dtype,
    batch_of,
    build,
    call_stock,
    differing,
    joined,
    picture,
    pictures,
    rebuild,
    recorded,
    relative_change,
    run_stock,
)
from torch import Tensor

from physedit.data_loaders.geometry import as_image
from physedit.models import qwen_image_edit
from physedit.models.backbone import Conditioning
from physedit.models.latents import pack
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.qwen_pipeline import EditPipeline, load_pipeline, working_at
from physedit.models.random_tiny_qwen import build_random_tiny_qwen

GUIDANCE = 4.0
# Relative; seen were 2e-7 and 1.3e-3.
BATCHED_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}
LONG_PROMPT = PROMPT + " Make it night too, and let the lamp on the left cast a long shadow."


@dataclass(frozen=True)
class Variant:
    pipeline: EditPipeline
    zero_cond_t: bool


VARIANTS = {
    "v1": Variant(V1, zero_cond_t=False),
    "v1-zero_cond_t": Variant(V1, zero_cond_t=True),
    "plus": Variant(PLUS, zero_cond_t=False),
    "plus-zero_cond_t": Variant(PLUS, zero_cond_t=True),
}
NEWEST = "plus-zero_cond_t"
CASES = [
    (name, count) for name, variant in VARIANTS.items() for count in ((1,) if variant.pipeline == V1 else (1, 2, 3))
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Saved pipelines by variant."""
    places = {}
    for name, variant in VARIANTS.items():
        place = tmp_path_factory.mktemp(name)
        kind = getattr(diffusers, variant.pipeline)
        build_random_tiny_qwen(kind, 0, zero_cond_t=variant.zero_cond_t).save_pretrained(place)
        places[name] = str(place)
    return places


@dataclass(frozen=True)
class Pair:
    """The pipeline of a user and the backbone, over the same weights."""

    stock: Any
    backbone: QwenImageEdit


Pairs = Callable[[str, Dtype], Pair]


@pytest.fixture(scope="module")
def pairs(folders: dict[str, str]) -> Pairs:
    """Returns the pair of a variant and a dtype; each is loaded once."""

    @cache
    def pair(name: str, dtype: Dtype) -> Pair:
        kind, folder = VARIANTS[name].pipeline, folders[name]
        return Pair(load_pipeline(kind, Path(folder), DTYPES[dtype]), build(kind, dtype, weights=folder))

    return pair


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "count"), CASES)
def test_every_input_of_the_transformer_is_the_pipelines(name: str, count: int, dtype: Dtype, pairs: Pairs) -> None:
    pair = pairs(name, dtype)
    height, width = pair.backbone.sizes_of(*pictures(1)[0].shape[-2:]).output
    theirs = run_stock(pair.stock, pictures(count), height=height, width=width)
    ours = rebuild(pair.backbone, theirs, pair.stock.scheduler.sigmas[:-1], batch_of(pictures(count)))
    assert len(theirs) == len(ours) == 3
    assert len(theirs[0].inputs["img_shapes"][0]) == 1 + count
    for step in range(3):
        assert differing(theirs[step], ours[step]) == set()
        assert torch.equal(theirs[step].output, ours[step].output)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_input_is_the_pipelines_for_a_batch_of_unlike_prompts(dtype: Dtype, pairs: Pairs) -> None:
    pair = pairs("v1", dtype)
    # A list is shown to the pipeline's text encoder as it is, so it must have the working size already.
    given = picture(128, 64, 1), picture(128, 64, 2)
    prompts = [PROMPT, LONG_PROMPT]
    theirs = run_stock(
        pair.stock,
        given,
        image=[as_image(each) for each in given],
        prompt=prompts,
        generator=[torch.Generator().manual_seed(seed) for seed in (1, 2)],
    )
    batch = joined(batch_of(given[:1], prompts[0]), batch_of(given[1:], prompts[1]))
    ours = rebuild(pair.backbone, theirs, pair.stock.scheduler.sigmas[:-1], batch)
    alone = [run_stock(pair.stock, [each], prompt=text)[0] for each, text in zip(given, prompts, strict=True)]
    text = "encoder_hidden_states"
    for step in range(3):
        # The pipeline encodes both prompts in one pass, whose sums round otherwise than those of one.
        assert differing(theirs[step], ours[step]) <= {text}
        assert ours[step].inputs["encoder_hidden_states_mask"].dtype == torch.int64
        found = ours[step].inputs[text]
        for row, single in enumerate(alone):
            length = single.inputs[text].shape[1]
            assert torch.equal(found[row, :length], single.inputs[text][0])
            assert not found[row, length:].any()
        assert relative_change(theirs[step].inputs[text], found) < BATCHED_TOLERANCE[dtype]
        assert relative_change(theirs[step].output, ours[step].output) < BATCHED_TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["v1", NEWEST])
def test_target_of_another_size_than_the_source_has_its_own_grid(name: str, pairs: Pairs) -> None:
    pair = pairs(name, "float32")
    theirs = run_stock(pair.stock, pictures(1), height=64, width=96)
    ours = rebuild(pair.backbone, theirs, pair.stock.scheduler.sigmas[:-1], batch_of(pictures(1)))
    assert theirs[0].inputs["img_shapes"] == [[(1, 4, 6), (1, 8, 4)]]
    assert [differing(a, b) for a, b in zip(theirs, ours, strict=True)] == [set()] * 3
    assert all(torch.equal(a.output, b.output) for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("name", ["v1", NEWEST])
def test_every_input_is_the_pipelines_at_the_released_areas(name: str, folders: dict[str, str]) -> None:
    kind = VARIANTS[name].pipeline
    stock = load_pipeline(kind, Path(folders[name]), torch.float32)
    areas = {} if kind == V1 else {"vision_area_px": 384 * 384}
    backbone = build(kind, weights=folders[name], area_px=1024 * 1024, **areas)
    source = picture(75, 100, 6)  # 4:3

    def stop(pipeline: Any, step: int, time: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        pipeline._interrupt = True
        return state

    # Two steps, since the schedule of one is not a number; no area is patched.
    with recorded(stock.transformer) as theirs, torch.no_grad():
        call_stock(stock, [source], num_inference_steps=2, callback_on_step_end=stop)
    ours = rebuild(backbone, theirs, stock.scheduler.sigmas[:1], batch_of([source]))
    assert theirs[0].inputs["img_shapes"] == [[(1, 56, 74), (1, 56, 74)]]
    assert differing(theirs[0], ours[0]) == set()
    assert torch.equal(theirs[0].output, ours[0].output)


@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "count"), [("v1", 1), (NEWEST, 1), (NEWEST, 3)])
def test_edit_is_the_pipelines_picture(name: str, count: int, dtype: Dtype, guidance: float, pairs: Pairs) -> None:
    pair = pairs(name, dtype)
    height, width = pair.backbone.sizes_of(*pictures(1)[0].shape[-2:]).output
    with working_at(pair.stock, AREA_PX, VISION_AREA_PX):
        theirs = call_stock(
            pair.stock,
            pictures(count),
            height=height,
            width=width,
            true_cfg_scale=guidance,
            negative_prompt=" " if guidance > 1 else None,
            output_type="np",
        )[0]
    ours = pair.backbone.edit(
        pair.backbone.denoiser,
        [pictures(count)],
        [PROMPT],
        num_steps=3,
        guidance=guidance,
        generators=[torch.Generator().manual_seed(SEED)],
    )
    expected = torch.from_numpy((theirs * 255).round().astype("uint8")).permute(2, 0, 1)
    assert ours.shape == (1, 3, height, width)
    assert torch.equal(ours[0], expected)


@pytest.mark.parametrize("name", ["v1", NEWEST])
def test_edit_does_not_depend_on_the_batch(name: str, pairs: Pairs) -> None:
    backbone = pairs(name, "float32").backbone
    # Two stored sizes of one working size.
    given = [[picture(101, 67, 1)], [picture(202, 134, 2)]]

    def edit(*rows: int) -> Tensor:
        return backbone.edit(
            backbone.denoiser,
            [given[row] for row in rows],
            [(PROMPT, LONG_PROMPT)[row] for row in rows],
            num_steps=3,
            guidance=GUIDANCE,
            generators=[torch.Generator().manual_seed(row) for row in rows],
        )

    both = edit(0, 1)
    assert not torch.equal(both[0], both[1])
    for row in (0, 1):
        difference = (edit(row)[0].int() - both[row].int()).abs()
        # Float rounding may tip a value over the edge between two of 256 levels.
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.01


def test_edit_comes_out_in_the_size_of_the_first_picture(pairs: Pairs) -> None:
    backbone = pairs("plus", "float32").backbone
    given = picture(60, 90, 4), picture(101, 67, 3)
    edited = backbone.edit(
        backbone.denoiser, [given], [PROMPT], num_steps=2, guidance=1.0, generators=[torch.Generator()]
    )
    assert edited.shape[-2:] == backbone.sizes_of(60, 90).output == (64, 128)
    assert backbone.sizes_of(101, 67).source == (128, 64)


def test_first_noise_of_the_pipeline_is_the_generators(pairs: Pairs) -> None:
    theirs = run_stock(pairs("v1", "float32").stock, pictures(1))
    noise = torch.randn(1, 1, 4, 16, 8, generator=torch.Generator().manual_seed(SEED))
    tokens = pack(noise[:, 0])
    assert torch.equal(theirs[0].inputs["hidden_states"][:, : tokens.shape[1]], tokens)


def _unnormalise(backbone: QwenImageEdit, conditioning: Conditioning) -> Conditioning:
    config = backbone._pipeline.vae.config
    mean, spread = (torch.tensor(v).view(1, -1, 1, 1) for v in (config.latents_mean, config.latents_std))
    return replace(conditioning, sources=tuple(source * spread + mean for source in conditioning.sources))


def _sample(backbone: QwenImageEdit) -> None:
    encode = backbone._pipeline.vae.encode

    def sampled(pixels: Tensor) -> Any:
        posterior = encode(pixels).latent_dist
        draw = partial(posterior.sample, torch.Generator().manual_seed(0))
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=draw))

    backbone._pipeline.vae.encode = sampled


def _lose_positions(backbone: QwenImageEdit) -> None:
    backbone._pipeline.text_encoder._forward_pre_hooks.clear()


def _take_template_of_v1(backbone: QwenImageEdit) -> None:
    pipeline = backbone._pipeline
    pipeline.prompt_template_encode = load_pipeline(V1, "random_tiny", torch.float32).prompt_template_encode
    pipeline._get_qwen_prompt_embeds = MethodType(QwenImageEditPipeline._get_qwen_prompt_embeds, pipeline)


def _show_larger_pictures(backbone: QwenImageEdit) -> None:
    backbone._text._vision_area_px = 2 * VISION_AREA_PX


def _give_references_the_true_time(backbone: QwenImageEdit) -> None:
    for module in backbone.denoiser.modules():
        if hasattr(module, "zero_cond_t"):
            module.zero_cond_t = False


# What each fault changes, and the transformer's output by how much at least: a tenth of what was seen.
FAULTS: dict[str, tuple[Callable[[QwenImageEdit], None], set[str], float]] = {
    "sample for the mode": (_sample, {"hidden_states"}, 6e-2),
    "positions of one axis": (_lose_positions, {"encoder_hidden_states"}, 1.5e-3),
    "template of v1": (_take_template_of_v1, {"encoder_hidden_states"}, 2e-3),
    "picture seen at another size": (_show_larger_pictures, {"encoder_hidden_states"}, 1.5e-3),
    "true time for the reference": (_give_references_the_true_time, set(), 4e-3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_comparison_detects(fault: str, folders: dict[str, str], pairs: Pairs) -> None:
    stock, backbone = pairs(NEWEST, "float32").stock, build(PLUS, weights=folders[NEWEST])
    breaks, names, least_change = FAULTS[fault]
    breaks(backbone)
    theirs = run_stock(stock, pictures(1))
    ours = rebuild(backbone, theirs, stock.scheduler.sigmas[:-1], batch_of(pictures(1)))
    assert_changed(theirs, ours, names, least_change)


def test_comparison_detects_references_that_are_not_normalised(pairs: Pairs) -> None:
    pair = pairs(NEWEST, "float32")
    theirs = run_stock(pair.stock, pictures(2), height=128, width=64)
    sigmas, change = pair.stock.scheduler.sigmas[:-1], partial(_unnormalise, pair.backbone)
    ours = rebuild(pair.backbone, theirs, sigmas, batch_of(pictures(2)), change)
    assert_changed(theirs, ours, {"hidden_states"}, 5e-2)


def assert_changed(stock: list[Call], ours: list[Call], names: set[str], least_change: float) -> None:
    changes = [relative_change(a.output, b.output) for a, b in zip(stock, ours, strict=True)]
    assert [differing(a, b) for a, b in zip(stock, ours, strict=True)] == [names] * 3
    assert min(changes) > least_change


def test_comparison_detects_a_time_off_by_one_thousandth(pairs: Pairs) -> None:
    pair = pairs(NEWEST, "float32")
    theirs = run_stock(pair.stock, pictures(2), height=128, width=64)
    ours = rebuild(pair.backbone, theirs, pair.stock.scheduler.sigmas[:-1] + 1e-3, batch_of(pictures(2)))
    assert_changed(theirs, ours, {"timestep"}, 8e-4)


def test_comparison_detects_a_reference_on_the_targets_grid(pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pairs(NEWEST, "float32")
    given = picture(128, 64, 1), picture(64, 128, 2)  # as many tokens on another grid
    theirs = run_stock(pair.stock, given, height=128, width=64)
    monkeypatch.setattr(qwen_image_edit, "_grid", lambda latents: (1, 8, 4))
    ours = rebuild(pair.backbone, theirs, pair.stock.scheduler.sigmas[:-1], batch_of(given))
    assert_changed(theirs, ours, {"img_shapes"}, 9e-4)


def test_comparison_detects_a_dropped_mask(pairs: Pairs) -> None:
    backbone = pairs("v1", "float32").backbone
    batch = joined(batch_of(pictures(1)), batch_of(pictures(1), LONG_PROMPT))
    conditioning = backbone.encode(batch)
    noise = torch.randn(conditioning.target.shape, generator=torch.Generator().manual_seed(1))
    unmasked = replace(conditioning, text={"prompts": conditioning.text["prompts"]})
    with recorded(backbone.denoiser) as calls, torch.no_grad():
        for each in (conditioning, unmasked):
            backbone.velocity(backbone.denoiser, noise, torch.tensor([0.5, 0.5]), each)
    assert differing(*calls) == {"encoder_hidden_states_mask"}
    assert relative_change(calls[0].output[0], calls[1].output[0]) > 7e-3
