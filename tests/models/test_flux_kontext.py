"""Training equals inference: what reaches the transformer in training is what the stock pipeline passes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxKontextPipeline
from PIL import Image
from torch import Tensor, nn

from physedit.data_loaders.sample import EditBatch, PictureSizeError
from physedit.models import flux_kontext
from physedit.models.flux_kontext import FluxKontext
from physedit.models.flux_pipeline import load_pipeline
from physedit.models.latents import pack, pipeline_time, unpack
from physedit.models.lora import LoraSettings, adapter_state, add_adapter, load_state

GUIDANCE = 2.5
NUM_STEPS = 4
HEIGHT, WIDTH = 64, 48
PROMPT = "Remove the stand so that the ball falls down."
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Call:
    inputs: dict[str, Any]
    output: Tensor


@contextmanager
def recorded(denoiser: nn.Module) -> Iterator[list[Call]]:
    calls: list[Call] = []

    def keep(module: nn.Module, args: object, inputs: dict[str, Any], output: tuple[Tensor]) -> None:
        calls.append(Call(dict(inputs), output[0].detach().clone()))

    handle = denoiser.register_forward_hook(keep, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def picture(height: int = HEIGHT, width: int = WIDTH, seed: int = 3) -> Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def as_pil(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def build(dtype: str = "float32", area_px: int = HEIGHT * WIDTH, **options: Any) -> FluxKontext:
    settings = {"max_text_tokens": 24, "train_guidance": GUIDANCE, **options}
    return FluxKontext(weights="random_tiny", dtype=dtype, area_px=area_px, **settings)


def run_stock(
    pipeline: FluxKontextPipeline, source: Tensor, height: int = HEIGHT, width: int = WIDTH
) -> tuple[list[Call], Tensor]:
    """The pipeline as a user calls it: a PIL picture and a prompt. Returns its calls and the edited picture."""
    with recorded(pipeline.transformer) as calls:
        image = pipeline(
            image=as_pil(source),
            prompt=PROMPT,
            height=height,
            width=width,
            max_area=height * width,
            _auto_resize=False,
            max_sequence_length=24,
            num_inference_steps=NUM_STEPS,
            guidance_scale=GUIDANCE,
            generator=torch.Generator().manual_seed(7),
            output_type="np",
        ).images[0]
    return calls, torch.from_numpy((image * 255).round().astype("uint8")).permute(2, 0, 1)


def rebuild(
    backbone: FluxKontext,
    stock: list[Call],
    sigmas: Tensor,
    source: Tensor,
    height: int = HEIGHT,
    width: int = WIDTH,
    normalised: bool = True,
) -> list[Call]:
    """Calls ``velocity`` with the pipeline's noisy latents and sigma of each step; everything else is ours."""
    size = {"height": height // 8, "width": width // 8}
    conditioning = backbone.encode(EditBatch(("a",), (source,), (source,), (PROMPT,)))
    if not normalised:
        config = backbone._pipeline.vae.config
        raw = conditioning.sources[0] / config.scaling_factor + config.shift_factor
        conditioning = replace(conditioning, sources=(raw,))
    num_tokens = size["height"] * size["width"] // 4
    with recorded(backbone.denoiser) as calls, torch.no_grad():
        for call, sigma in zip(stock, sigmas, strict=True):
            noisy = unpack(call.inputs["hidden_states"][:, :num_tokens].float(), **size)
            backbone.velocity(backbone.denoiser, noisy, sigma[None], conditioning)
    return calls


def differing(stock: Call, ours: Call) -> set[str]:
    assert stock.inputs.keys() == ours.inputs.keys()
    return {name for name, value in stock.inputs.items() if not same(value, ours.inputs[name])}


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    return bool(first == second)


@pytest.fixture(scope="module", params=DTYPES)
def stock(request: pytest.FixtureRequest) -> tuple[str, FluxKontextPipeline]:
    return request.param, load_pipeline("random_tiny", DTYPES[request.param])


def test_every_input_of_the_transformer_is_the_pipelines(stock: tuple[str, FluxKontextPipeline]) -> None:
    dtype, pipeline = stock
    theirs, _ = run_stock(pipeline, picture())
    ours = rebuild(build(dtype), theirs, pipeline.scheduler.sigmas[:-1], picture())
    assert len(ours) == NUM_STEPS
    for step in range(NUM_STEPS):
        assert differing(theirs[step], ours[step]) == set()
        assert torch.equal(theirs[step].output, ours[step].output)


def test_reference_of_another_shape_keeps_its_own_grid() -> None:
    pipeline = load_pipeline("random_tiny", torch.float32)
    theirs, _ = run_stock(pipeline, picture(32, 64), height=64, width=48)
    backbone = build(area_px=32 * 64)
    ours = rebuild(backbone, theirs, pipeline.scheduler.sigmas[:-1], picture(32, 64), height=64, width=48)
    assert [differing(a, b) for a, b in zip(theirs, ours, strict=True)] == [set()] * NUM_STEPS


def test_edit_is_the_pipelines_picture(stock: tuple[str, FluxKontextPipeline]) -> None:
    dtype, pipeline = stock
    _, theirs = run_stock(pipeline, picture())
    backbone = build(dtype)
    ours = backbone.edit(
        backbone.denoiser,
        [(picture(),)],
        [PROMPT],
        num_steps=NUM_STEPS,
        guidance=GUIDANCE,
        generators=[torch.Generator().manual_seed(7)],
    )
    assert torch.equal(ours[0], theirs)


def test_first_noise_of_the_pipeline_is_the_generators() -> None:
    pipeline = load_pipeline("random_tiny", torch.float32)
    theirs, _ = run_stock(pipeline, picture())
    noise = torch.randn(1, 4, HEIGHT // 8, WIDTH // 8, generator=torch.Generator().manual_seed(7))
    tokens = pack(noise)
    assert torch.equal(theirs[0].inputs["hidden_states"][:, : tokens.shape[1]], tokens)


# Relative change of the transformer's output that each fault must cause here at least: a tenth of what was seen.
FAULTS: dict[str, tuple[str, float]] = {
    "time off by 1/1000": ("timestep", 1.6e-3),
    "guidance 1 for 2.5": ("guidance", 1.1e-2),
    "reference not marked": ("img_ids", 1.6e-3),
    "reference not normalised": ("hidden_states", 2.4e-2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_comparison_detects(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = load_pipeline("random_tiny", torch.float32)
    theirs, _ = run_stock(pipeline, picture())
    sigmas = pipeline.scheduler.sigmas[:-1]
    if fault == "time off by 1/1000":
        sigmas = sigmas + 1e-3
    if fault == "reference not marked":
        positions = flux_kontext.token_positions

        def unmarked(target: Tensor, source: Tensor, dtype: torch.dtype) -> Tensor:
            ids = positions(target, source, dtype)
            ids[:, 0] = 0
            return ids

        monkeypatch.setattr(flux_kontext, "token_positions", unmarked)
    backbone = build(train_guidance=1.0 if fault == "guidance 1 for 2.5" else GUIDANCE)
    ours = rebuild(backbone, theirs, sigmas, picture(), normalised=fault != "reference not normalised")
    name, least_change = FAULTS[fault]
    for step in range(NUM_STEPS):
        assert differing(theirs[step], ours[step]) == {name}
        change = (theirs[step].output - ours[step].output).norm() / theirs[step].output.norm()
        assert change > least_change


@pytest.mark.parametrize("dtype", DTYPES)
def test_time_is_the_pipelines_at_every_grid_point(dtype: str) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=[(1000 - i) / 1000 for i in range(1000)])
    # FluxKontextPipeline.__call__: t.expand(batch).to(latents.dtype), then / 1000.
    theirs = torch.stack([t.expand(1).to(DTYPES[dtype]) / 1000 for t in scheduler.timesteps])[:, 0]
    ours = pipeline_time(scheduler.sigmas[:-1], scheduler, DTYPES[dtype])
    assert ours.dtype == DTYPES[dtype]
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 96), (160, 16)])
def test_time_shift_is_the_pipelines(height: int, width: int) -> None:
    pipeline = load_pipeline("random_tiny", torch.float32)
    source = picture(height, width)
    run_stock(pipeline, source, height, width)
    unshifted = torch.linspace(1.0, 1 / NUM_STEPS, NUM_STEPS, dtype=torch.float64)
    shift = build(area_px=height * width).encode(EditBatch(("a",), (source,), (source,), (PROMPT,))).time_shift
    factor = torch.tensor(shift, dtype=torch.float64).exp()
    ours = factor * unshifted / (1 + (factor - 1) * unshifted)
    # The scheduler works in float32.
    assert (ours - pipeline.scheduler.sigmas[:-1].double()).abs().max() < 1e-6


def test_latents_are_the_normalised_mode_not_a_sample() -> None:
    backbone = build()
    conditioning = backbone.encode(EditBatch(("a",), (picture(),), (picture(),), (PROMPT,)))
    vae = backbone._pipeline.vae
    pixels = picture()[None].float() / 255 * 2 - 1
    mode = (vae.encode(pixels).latent_dist.mode() - vae.config.shift_factor) * vae.config.scaling_factor
    sample = (vae.encode(pixels).latent_dist.sample() - vae.config.shift_factor) * vae.config.scaling_factor
    # The plain layout of these pixels rounds otherwise than the pipeline's channels-last one.
    assert (conditioning.sources[0] - mode).abs().max() < 1e-5
    assert (conditioning.sources[0] - sample).abs().max() > 0.1


def test_target_and_source_latents_are_not_swapped() -> None:
    backbone = build()
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 64, 48).contiguous()
    blue = red.flip(0)
    mixed = backbone.encode(EditBatch(("a",), (red,), (blue,), (PROMPT,)))
    only_blue = backbone.encode(EditBatch(("a",), (blue,), (blue,), (PROMPT,)))
    assert torch.equal(mixed.target, only_blue.target)
    assert not torch.equal(mixed.sources[0], only_blue.sources[0])
    assert mixed.change.unique().tolist() == [1.0]


def test_only_text_beyond_the_limit_is_cut_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    backbone = build()

    def text_of(prompt: str) -> Tensor:
        return backbone.encode(EditBatch(("a",), (picture(),), (picture(),), (prompt,))).text["prompts"]

    start = "remove the " * 10
    assert torch.equal(text_of(start + "ball"), text_of(start + "lamp"))
    assert not torch.equal(text_of("the ball"), text_of("the lamp"))
    assert len([r for r in caplog.records if "cut to backbone.max_text_tokens=24" in r.message]) == 1


def test_gradient_checkpointing_changes_no_gradient() -> None:
    gradients: list[dict[str, Tensor]] = []
    for checkpointing in (False, True):
        backbone = build(gradient_checkpointing=checkpointing)
        add_adapter(backbone.denoiser, LoraSettings(2, 4.0), targets=backbone.lora_presets["attention_mlp"], seed=0)
        generator = torch.Generator().manual_seed(1)
        state = adapter_state(backbone.denoiser)
        load_state(backbone.denoiser, {n: 0.1 * torch.randn(v.shape, generator=generator) for n, v in state.items()})
        backbone.denoiser.train()
        conditioning = backbone.encode(EditBatch(("a",), (picture(),), (picture(seed=4),), (PROMPT,)))
        noise = torch.randn(conditioning.target.shape, generator=generator)
        with recorded(backbone.denoiser.transformer_blocks[0].ff) as block_calls:
            backbone.velocity(backbone.denoiser, noise, torch.tensor([0.7]), conditioning).square().mean().backward()
        assert len(block_calls) == (2 if checkpointing else 1)
        gradients.append({n: p.grad for n, p in backbone.denoiser.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert len(gradients[0]) == len(state)
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_adapter_stays_float32_over_a_bfloat16_base_and_trains() -> None:
    backbone = build("bfloat16")
    add_adapter(backbone.denoiser, LoraSettings(2, 2.0), targets=backbone.lora_presets["attention"], seed=0)
    parameters = dict(backbone.denoiser.named_parameters())
    assert {p.dtype for n, p in parameters.items() if "lora_" in n} == {torch.float32}
    assert {p.dtype for n, p in parameters.items() if "lora_" not in n} == {torch.bfloat16}
    conditioning = backbone.encode(EditBatch(("a",), (picture(),), (picture(seed=4),), (PROMPT,)))
    velocity = backbone.velocity(
        backbone.denoiser, torch.randn(conditioning.target.shape), torch.tensor([0.7]), conditioning
    )
    assert velocity.dtype == torch.float32
    velocity.square().mean().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.abs().max() > 0 for n, p in parameters.items() if "lora_B" in n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "backbone.dtype is 'float16'"),
        ({"max_text_tokens": 0}, "max_text_tokens is 0"),
        ({"max_text_tokens": 513}, "max_text_tokens is 513"),
        ({"weights": "./absent"}, "backbone.weights is './absent'"),
        ({"area_px": 1023}, "area_px is 1023"),
        ({"encoders": "gone"}, "encoders is 'gone'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    settings = {"weights": "random_tiny", "dtype": "float32", "max_text_tokens": 24, **options}
    with pytest.raises(ValueError, match=message):
        FluxKontext(**settings)


def test_sources_of_unlike_size_and_references_are_refused() -> None:
    backbone = build()
    wide, tall = picture(48, 64), picture(64, 48)
    with pytest.raises(
        PictureSizeError, match=r"a is edited from 64x48 to 64x48 and b from 48x64 to 48x64 .* Set micro_batch=1"
    ):
        backbone.encode(EditBatch(("a", "b"), (wide, tall), (wide, tall), (PROMPT, PROMPT)))
    with pytest.raises(PictureSizeError, match=r"a gives 2 pictures.*takes 1"):
        backbone.encode(EditBatch(("a",), (tall,), (tall,), (PROMPT,), ((wide,),)))


@pytest.mark.parametrize("is_shown", [True, False])
def test_loading_draws_no_bar_and_leaves_the_switches_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_shown: bool
) -> None:
    from diffusers.utils import logging as diffusers_log
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as transformers_log

    load_pipeline("random_tiny", torch.float32).save_pretrained(tmp_path)
    for log in (diffusers_log, transformers_log):
        (log.enable_progress_bar if is_shown else log.disable_progress_bar)()
    capfd.readouterr()
    try:
        load_pipeline(tmp_path, torch.float32)
        assert "Loading" not in capfd.readouterr().err
        assert diffusers_log.is_progress_bar_enabled() == is_shown
        assert transformers_log.is_progress_bar_enabled() == is_shown
        assert are_progress_bars_disabled() != is_shown
    finally:
        for log in (diffusers_log, transformers_log):
            log.enable_progress_bar()


def test_importing_the_module_does_not_import_diffusers() -> None:
    import subprocess
    import sys

    code = (
        "import sys, physedit.models.flux_kontext, physedit.models.lora;"
        "sys.exit(','.join({'diffusers', 'transformers', 'peft'} & set(sys.modules)) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
