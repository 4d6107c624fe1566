"""What the Qwen-Image-Edit backbone makes of pictures and instructions before anything is denoised."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from tests.support.qwen_editors import (
    AREA_PX,
    NUM_STEPS,
    PLUS,
    PROMPT,
    V1,
    VISION_AREA_PX,
    batch_of,
    build,
    call_stock,
    joined,
    picture,
    pictures,
    recorded,
    run_stock,
)
from torch import Tensor

from physedit.data_loaders.geometry import as_image, resized
from physedit.data_loaders.sample import EditBatch, PictureSizeError
from physedit.models.latents import pack, pipeline_time, unpack
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.qwen_pipeline import EditPipeline, load_pipeline, working_at
from physedit.models.sizes import RELEASED_AREA_PX, qwen_size

LONG_PROMPT = PROMPT + " Make it night, and let the lamp on the left cast a long shadow over the whole table." * 4
PIPELINES: tuple[EditPipeline, ...] = (V1, PLUS)


@pytest.fixture(scope="module")
def backbones() -> dict[str, QwenImageEdit]:
    return {pipeline: build(pipeline) for pipeline in PIPELINES}


@pytest.fixture(scope="module")
def stocks() -> dict[str, Any]:
    return {pipeline: load_pipeline(pipeline, "random_tiny", torch.float32) for pipeline in PIPELINES}


def test_sizes_are_the_pipelines_for_every_size() -> None:
    sides = [64, 65, 101, 333, 480, 640, 720, 768, 1000, 1024, 1080, 1333, 1500, 1920, 2048, 2999, 3000, 4000]
    count = 0
    for height in sides:
        for width in sides:
            for area in (RELEASED_AREA_PX, 384 * 384):
                v1 = pipeline_qwenimage_edit.calculate_dimensions(area, width / height)[:2]
                plus = pipeline_qwenimage_edit_plus.calculate_dimensions(area, width / height)
                if min(v1) == 0:
                    continue
                assert qwen_size(height, width, area_px=area)[::-1] == v1 == plus
                count += 1
    assert count > 600


def test_sizes_of_a_picture_of_four_to_three() -> None:
    assert qwen_size(75, 100, area_px=RELEASED_AREA_PX) == (896, 1184)
    assert qwen_size(75, 100, area_px=384 * 384) == (320, 448)


def test_a_picture_too_long_and_narrow_is_refused(backbones: dict[str, QwenImageEdit]) -> None:
    with pytest.raises(PictureSizeError, match="too long and narrow"):
        backbones[V1].encode(batch_of([picture(2, 400, 0)]))


@pytest.mark.parametrize("size", [(101, 67), (64, 64), (1, 1), (300, 50), (128, 64)])
def test_pixels_after_resizing_are_the_pipelines_bit_for_bit(size: tuple[int, int], stocks: dict[str, Any]) -> None:
    stored = picture(*size, seed=2)
    height, width = qwen_size(*size, area_px=AREA_PX)
    process = stocks[V1].image_processor
    v1 = process.preprocess(process.resize(as_image(stored), height, width), height, width)
    plus = process.preprocess(as_image(stored), height, width)
    ours = process.preprocess(as_image(resized(stored, height, width)), height, width)
    assert torch.equal(ours, v1)
    assert torch.equal(ours, plus)
    assert ours.stride() == plus.stride()


@pytest.mark.parametrize(("pipeline", "count"), [(V1, 1), (PLUS, 1), (PLUS, 2), (PLUS, 3)])
def test_the_text_encoder_is_shown_what_the_pipeline_shows_it(
    pipeline: EditPipeline, count: int, backbones: dict[str, QwenImageEdit], stocks: dict[str, Any]
) -> None:
    backbone, stock = backbones[pipeline], stocks[pipeline]
    backbone.forget()
    with recorded(stock.text_encoder.model) as theirs, working_at(stock, AREA_PX, VISION_AREA_PX):
        call_stock(stock, pictures(count), num_inference_steps=2)
    with recorded(backbone._pipeline.text_encoder.model) as ours:
        backbone.encode(batch_of(pictures(count)))
    assert len(theirs) == len(ours) == 1
    for name in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "mm_token_type_ids"):
        assert torch.equal(theirs[0].inputs[name], ours[0].inputs[name])
    assert len(ours[0].inputs["image_grid_thw"]) == count


def test_a_picture_is_rescaled_once(backbones: dict[str, QwenImageEdit]) -> None:
    backbone, source = backbones[V1], picture(128, 64, 5)
    backbone.forget()
    with recorded(backbone._pipeline.text_encoder.model) as calls:
        backbone.encode(batch_of([source]))
    process = backbone._pipeline.processor.image_processor
    once = process(as_image(source), return_tensors="pt").pixel_values
    twice = process(source / 255, return_tensors="pt").pixel_values
    assert torch.equal(calls[0].inputs["pixel_values"], once)
    assert twice.std() < 0.25 * once.std()  # nearly black


@pytest.mark.parametrize(("side", "num_tokens"), [(1024, 1369), (384, 196)])
def test_number_of_picture_tokens_at_the_released_areas(side: int, num_tokens: int, stocks: dict[str, Any]) -> None:
    stock, square = stocks[V1], as_image(picture(side, side, 1))
    inputs = stock.processor(text=[stock.prompt_template_encode.format(PROMPT)], images=[square], return_tensors="pt")
    assert int((inputs.input_ids == stock.text_encoder.config.image_token_id).sum()) == num_tokens


@pytest.mark.parametrize(("pipeline", "first"), [(V1, "<|vision_start|>"), (PLUS, "Picture 1: <|vision_start|>")])
def test_the_64_tokens_that_are_dropped_end_with_the_users_header(
    pipeline: EditPipeline, first: str, backbones: dict[str, QwenImageEdit]
) -> None:
    backbone = backbones[pipeline]
    backbone.forget()
    with recorded(backbone._pipeline.text_encoder.model) as calls:
        conditioning = backbone.encode(batch_of(pictures(1)))
    tokens, tokenizer = calls[0].inputs["input_ids"][0], backbone._pipeline.processor.tokenizer
    assert tokenizer.decode(tokens[:64]).endswith("<|im_end|>\n<|im_start|>user\n")
    assert tokenizer.decode(tokens[64:]).startswith(first)
    assert tokenizer.decode(tokens[64:]).endswith(PROMPT + "<|im_end|>\n<|im_start|>assistant\n")
    assert torch.equal(conditioning.text["prompts"][0], calls[0].output[0, 64:])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_prompts_change_with_the_source_alone(pipeline: EditPipeline, backbones: dict[str, QwenImageEdit]) -> None:
    first, second = (backbones[pipeline].encode(batch_of([picture(101, 67, seed)])).text["prompts"] for seed in (1, 2))
    assert first.shape == second.shape
    assert (first - second).norm() / first.norm() > 1e-2


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_batch_of_unlike_prompts_and_sizes_equals_its_items_up_to_padding(
    pipeline: EditPipeline, backbones: dict[str, QwenImageEdit]
) -> None:
    backbone = backbones[pipeline]
    # Two stored sizes of one working size.
    items = [batch_of([picture(101, 67, 1)]), batch_of([picture(202, 134, 2)], LONG_PROMPT)]
    both = backbone.encode(joined(*items))
    backbone.forget()
    alone = [backbone.encode(item) for item in items]
    lengths = [each.text["prompts"].shape[1] for each in alone]
    assert lengths[0] < lengths[1]
    assert both.text["mask"].tolist() == [[1] * lengths[0] + [0] * (lengths[1] - lengths[0]), [1] * lengths[1]]
    for row, each in enumerate(alone):
        assert "mask" not in each.text
        assert torch.equal(both.text["prompts"][row, : lengths[row]], each.text["prompts"][0])
        assert not both.text["prompts"][row, lengths[row] :].any()
        assert torch.equal(both.target[row], each.target[0])
        assert torch.equal(both.sources[0][row], each.sources[0][0])


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_loss_does_not_depend_on_a_longer_prompt_beside_it(
    pipeline: EditPipeline, backbones: dict[str, QwenImageEdit]
) -> None:
    backbone = backbones[pipeline]
    short = batch_of([picture(101, 67, 1)])
    both = backbone.encode(joined(short, batch_of([picture(101, 67, 2)], LONG_PROMPT)))
    noise = torch.randn(both.target.shape, generator=torch.Generator().manual_seed(1))
    sigma = torch.tensor([0.6, 0.6])
    share = sigma[:, None, None, None]
    noisy = (1 - share) * both.target + share * noise

    def loss(conditioning: Any, rows: slice) -> Tensor:
        velocity = backbone.velocity(backbone.denoiser, noisy[rows], sigma[rows], conditioning)
        return (velocity - (noise - both.target)[rows]).square().mean(dim=(1, 2, 3))[0]

    with torch.no_grad():
        alone, beside = loss(backbone.encode(short), slice(1)), loss(both, slice(None))
        unmasked = loss(replace(both, text={"prompts": both.text["prompts"]}), slice(None))
    assert abs(alone - beside) / alone < 1e-5
    assert abs(alone - unmasked) / alone > 1e-4


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_identical_samples_with_identical_noise_get_identical_velocities(
    pipeline: EditPipeline, backbones: dict[str, QwenImageEdit]
) -> None:
    backbone, item = backbones[pipeline], batch_of(pictures(1))
    conditioning = backbone.encode(joined(item, item))
    noise = torch.randn(conditioning.target[:1].shape, generator=torch.Generator().manual_seed(1)).repeat(2, 1, 1, 1)
    with torch.no_grad():
        velocity = backbone.velocity(backbone.denoiser, noise, torch.tensor([0.4, 0.4]), conditioning)
    assert torch.equal(velocity[0], velocity[1])


def test_what_the_transformer_says_of_references_is_dropped(backbones: dict[str, QwenImageEdit]) -> None:
    backbone = backbones[PLUS]
    conditioning = backbone.encode(batch_of(pictures(3)))
    noise = torch.randn(conditioning.target.shape, generator=torch.Generator().manual_seed(1))
    num_target = math.prod(conditioning.target.shape[-2:]) // 4

    def predict() -> Tensor:
        with torch.no_grad():
            return backbone.velocity(backbone.denoiser, noise, torch.tensor([0.4]), conditioning)

    plain = predict()

    def spoil(module: object, args: object, output: tuple[Tensor]) -> tuple[Tensor]:
        assert output[0].shape[1] > num_target
        output[0][:, num_target:] = torch.nan
        return output

    handle = backbone.denoiser.register_forward_hook(spoil)
    try:
        assert torch.equal(predict(), plain)
    finally:
        handle.remove()
    assert plain.shape == conditioning.target.shape


def test_latents_are_the_normalised_mode_not_a_sample(backbones: dict[str, QwenImageEdit]) -> None:
    backbone, source = backbones[V1], picture(128, 64, 3)
    latents = backbone.encode(batch_of([source])).sources[0]
    vae = backbone._pipeline.vae
    posterior = vae.encode((source[None] / 255 * 2 - 1)[:, :, None]).latent_dist
    mean, spread = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    mode, sample = ((raw - mean) / spread for raw in (posterior.mode(), posterior.sample()))
    # The plain layout of these pixels rounds otherwise than the pipeline's channels-last one.
    assert (latents - mode[:, :, 0]).abs().max() < 1e-5
    assert (latents - sample[:, :, 0]).abs().max() > 0.1
    backbone.forget()
    assert torch.equal(backbone.encode(batch_of([source])).sources[0], latents)
    # QwenImageEditPipeline.__call__ before it decodes.
    assert (latents[:, :, None] / (1.0 / spread) + mean - posterior.mode()).abs().max() < 1e-5


def test_target_and_source_latents_are_not_swapped(backbones: dict[str, QwenImageEdit]) -> None:
    backbone = backbones[V1]
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 64, 64).contiguous()
    blue = red.flip(0)
    mixed = backbone.encode(batch_of([red], target=blue))
    only_blue = backbone.encode(batch_of([blue]))
    assert torch.equal(mixed.target, only_blue.target)
    assert not torch.equal(mixed.sources[0], only_blue.sources[0])
    assert mixed.change.unique().tolist() == [1.0]


@pytest.mark.parametrize(("height", "width"), [(2, 2), (16, 8), (6, 34)])
def test_packing_is_the_pipelines_and_unpacking_undoes_it(height: int, width: int, stocks: dict[str, Any]) -> None:
    latents = torch.randn(2, 4, height, width, generator=torch.Generator().manual_seed(0))
    tokens = pack(latents)
    assert torch.equal(tokens, stocks[V1]._pack_latents(latents, 2, 4, height, width))
    assert torch.equal(unpack(tokens, height=height, width=width), latents)
    theirs = stocks[V1]._unpack_latents(tokens, 8 * height, 8 * width, 8)
    assert torch.equal(theirs[:, :, 0], latents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_time_is_the_pipelines_at_every_grid_point(dtype: torch.dtype, stocks: dict[str, Any]) -> None:
    scheduler = type(stocks[V1].scheduler).from_config(stocks[V1].scheduler.config)
    scheduler.set_timesteps(sigmas=[(1000 - i) / 1000 for i in range(1000)], mu=0.7)
    # QwenImageEditPipeline.__call__: t.expand(batch).to(latents.dtype), then / 1000.
    theirs = torch.stack([t.expand(1).to(dtype) / 1000 for t in scheduler.timesteps])[:, 0]
    ours = pipeline_time(scheduler.sigmas[:-1], scheduler, dtype)
    assert ours.dtype == dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [(64, 64), (101, 67), (40, 160)])
def test_time_shift_is_the_pipelines(
    size: tuple[int, int], backbones: dict[str, QwenImageEdit], stocks: dict[str, Any]
) -> None:
    given = [picture(*size, seed=1)]
    run_stock(stocks[V1], given)
    unshifted = torch.linspace(1.0, 1 / NUM_STEPS, NUM_STEPS, dtype=torch.float64)
    factor = math.exp(backbones[V1].encode(batch_of(given)).time_shift)
    shifted = factor * unshifted / (1 + (factor - 1) * unshifted)
    # The scheduler stretches its grid to end at 0.02, and works in float32.
    stretched = 1 - (1 - shifted) * (1 - 0.02) / (1 - shifted[-1])
    assert (stretched - stocks[V1].scheduler.sigmas[:-1].double()).abs().max() < 1e-6


def too_many(pipeline: EditPipeline) -> tuple[EditBatch, str]:
    if pipeline == V1:
        return batch_of(pictures(2)), "a gives 2 pictures to edit from, but this editor takes 1"
    return batch_of([*pictures(3), picture(50, 50, 6)]), "a gives 4 pictures to edit from, but this editor takes 3"


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_more_pictures_than_the_model_takes_are_refused(
    pipeline: EditPipeline, backbones: dict[str, QwenImageEdit]
) -> None:
    batch, message = too_many(pipeline)
    assert backbones[pipeline].max_sources == (1 if pipeline == V1 else 3)
    with pytest.raises(PictureSizeError, match=message):
        backbones[pipeline].encode(batch)
    with pytest.raises(PictureSizeError, match="pictures to edit from"):
        edit(backbones[pipeline], batch.given)


def test_pictures_of_unlike_grids_are_refused(backbones: dict[str, QwenImageEdit]) -> None:
    batch = joined(batch_of([picture(101, 67, 1)]), batch_of([picture(67, 101, 2)]))
    with pytest.raises(PictureSizeError, match="Set micro_batch=1"):
        backbones[V1].encode(batch)


def edit(backbone: QwenImageEdit, given: Sequence[Sequence[Tensor]], num_steps: int = 2) -> Tensor:
    return backbone.edit(
        backbone.denoiser, given, [PROMPT], num_steps=num_steps, guidance=4.0, generators=[torch.Generator()]
    )


def test_a_reference_of_a_size_that_the_editor_does_not_take_is_named_by_its_sample() -> None:
    batch = replace(batch_of(pictures(1)), references=((torch.zeros(3, 2000, 3, dtype=torch.uint8),),))
    with pytest.raises(PictureSizeError, match=rf"^{re.escape(batch.sample_ids[0])}: A picture of 3x2000"):
        build(PLUS).encode(batch)
