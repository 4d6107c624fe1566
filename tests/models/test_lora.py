from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from physedit.models.flux_kontext import FluxKontext
from physedit.models.flux_pipeline import LORA_PRESETS, load_pipeline
from physedit.models.lora import (
    adapter_state,
    add_adapter,
    load_state,
    preset_targets,
    swapped,
    unwrapped,
    without_adapter,
)
from physedit.models.random_tiny import build_random_tiny

ATTENTION = LORA_PRESETS["attention"]
PROMPT = "remove the ball"


def tiny() -> nn.Module:
    return build_random_tiny(0).transformer


def filled(denoiser: nn.Module, seed: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: 0.2 * torch.randn(v.shape, generator=generator) for n, v in adapter_state(denoiser).items()}


def modules(preset: str) -> list[str]:
    report = add_adapter(tiny(), rank=2, alpha=2.0, targets=LORA_PRESETS[preset], seed=0)
    assert report.names[::2] == tuple(
        f"{name.removesuffix('.lora_B.weight')}.lora_A.weight" for name in report.names[1::2]
    )
    return [name.removesuffix(".lora_A.weight") for name in report.names[::2]]


def in_blocks(*layers: str) -> set[str]:
    return {f"transformer_blocks.{i}.{layer}" for i in (0, 1) for layer in layers}


def in_single_blocks(*layers: str) -> set[str]:
    return {f"single_transformer_blocks.{i}.{layer}" for i in (0, 1) for layer in layers}


IMAGE_ATTENTION = in_blocks("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
TEXT_ATTENTION = in_blocks("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out")
SINGLE_ATTENTION = in_single_blocks("attn.to_q", "attn.to_k", "attn.to_v")
IMAGE_MLP = in_blocks("ff.net.0.proj", "ff.net.2")
TEXT_MLP = in_blocks("ff_context.net.0.proj", "ff_context.net.2")
SINGLE_MLP = in_single_blocks("proj_mlp", "proj_out")
EMBEDDERS = {
    "x_embedder",
    "context_embedder",
    "norm_out.linear",
    "proj_out",
    *(
        f"time_text_embed.{part}.linear_{i}"
        for part in ("timestep_embedder", "guidance_embedder", "text_embedder")
        for i in (1, 2)
    ),
}
GOLDEN = {
    "attention": IMAGE_ATTENTION | TEXT_ATTENTION | SINGLE_ATTENTION,
    "attention_mlp": IMAGE_ATTENTION | TEXT_ATTENTION | SINGLE_ATTENTION | IMAGE_MLP | TEXT_MLP | SINGLE_MLP,
    "image_stream": IMAGE_ATTENTION | IMAGE_MLP | SINGLE_ATTENTION | SINGLE_MLP,
    "all_linear": IMAGE_ATTENTION
    | TEXT_ATTENTION
    | SINGLE_ATTENTION
    | IMAGE_MLP
    | TEXT_MLP
    | SINGLE_MLP
    | in_blocks("norm1.linear", "norm1_context.linear")
    | in_single_blocks("norm.linear")
    | EMBEDDERS,
}


@pytest.mark.parametrize("preset", GOLDEN)
def test_preset_covers_exactly_these_layers(preset: str) -> None:
    covered = modules(preset)
    assert len(covered) == len(set(covered))
    assert set(covered) == GOLDEN[preset]


def test_report_counts_the_numbers() -> None:
    report = add_adapter(tiny(), rank=3, alpha=3.0, targets=(r"transformer_blocks\.0\.attn\.to_q",), seed=0)
    assert report.names == (
        "transformer_blocks.0.attn.to_q.lora_A.weight",
        "transformer_blocks.0.attn.to_q.lora_B.weight",
    )
    assert report.num_parameters == 2 * 3 * 32


def test_pattern_of_a_whole_name_leaves_its_namesakes_alone() -> None:
    report = add_adapter(tiny(), rank=2, alpha=2.0, targets=("proj_out",), seed=0)
    assert report.names == ("proj_out.lora_A.weight", "proj_out.lora_B.weight")


def test_targets_that_match_nothing_are_shown_with_real_names() -> None:
    with pytest.raises(ValueError, match=r"\['attn\.to_q'\] match none of the \d+ linear layers.*time_text_embed"):
        add_adapter(tiny(), rank=2, alpha=2.0, targets=("attn.to_q",), seed=0)


def test_target_that_is_no_regular_expression_is_named() -> None:
    with pytest.raises(ValueError, match=r"adapter\.targets has 'attn\.\(to_q', which is no regular expression"):
        add_adapter(tiny(), rank=2, alpha=2.0, targets=("attn.(to_q",), seed=0)


def test_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rank must be at least 1, found 0"):
        add_adapter(tiny(), rank=0, alpha=1.0, targets=ATTENTION, seed=0)


def test_unknown_preset_is_named_with_its_near_match() -> None:
    with pytest.raises(ValueError, match=r"'atention'.*attention_mlp.*Did you mean 'attention'\?"):
        preset_targets(LORA_PRESETS, "atention")


def test_first_values_depend_on_seed_and_name_alone() -> None:
    states = []
    for seed, targets in ((1, ATTENTION), (1, LORA_PRESETS["attention_mlp"]), (2, ATTENTION)):
        torch.manual_seed(len(states))
        denoiser = tiny()
        add_adapter(denoiser, rank=2, alpha=2.0, targets=targets, seed=seed)
        states.append(adapter_state(denoiser))
    first, wider, other = states
    assert all(torch.equal(value, wider[name]) for name, value in first.items())
    a_matrices = [name for name in first if "lora_A" in name]
    assert not any(torch.equal(first[name], other[name]) for name in a_matrices)
    assert len({tuple(first[name].flatten().tolist()) for name in a_matrices}) == len(a_matrices)
    assert all(value.abs().max() == 0 for name, value in first.items() if "lora_B" in name)


def test_a_matrices_fill_their_range() -> None:
    denoiser = tiny()
    add_adapter(denoiser, rank=16, alpha=2.0, targets=(r"transformer_blocks\.0\.ff\.net\.2",), seed=1)
    values = next(iter(adapter_state(denoiser).values()))
    bound = 128**-0.5
    assert values.shape == (16, 128)
    assert 0.99 * bound < values.abs().max() <= bound
    # The standard deviation of a uniform variable, to five standard errors of 2,048 draws.
    assert abs(values.std() / (bound / 3**0.5) - 1) < 0.05


def test_adding_an_adapter_leaves_the_global_generator_alone() -> None:
    denoiser = tiny()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    add_adapter(denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_adapter_matrices_are_trainable() -> None:
    denoiser = tiny()
    report = add_adapter(denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    trainable = [name for name, p in denoiser.named_parameters() if p.requires_grad]
    assert [name.replace(".default", "") for name in trainable] == list(report.names)


def test_state_is_a_view_of_the_live_values() -> None:
    denoiser = tiny()
    add_adapter(denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    state = adapter_state(denoiser)
    load_state(denoiser, filled(denoiser))
    assert all(torch.equal(value, filled(denoiser)[name]) for name, value in state.items())
    assert not any(value.requires_grad for value in state.values())


def test_state_of_another_adapter_is_refused_whole() -> None:
    denoiser = tiny()
    add_adapter(denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    before = {name: value.clone() for name, value in adapter_state(denoiser).items()}
    wrong = filled(denoiser)
    lost = next(iter(wrong))
    del wrong[lost]
    wrong["stranger.lora_A.weight"] = torch.zeros(2, 2)
    with pytest.raises(ValueError, match=rf"missing {lost}; unexpected stranger\.lora_A\.weight"):
        load_state(denoiser, wrong)
    with pytest.raises(ValueError, match="of another shape"):
        load_state(denoiser, {name: value[:1] for name, value in filled(denoiser).items()})
    assert all(torch.equal(value, before[name]) for name, value in adapter_state(denoiser).items())


def test_model_without_adapter_says_so() -> None:
    with pytest.raises(ValueError, match="has no adapter"):
        adapter_state(tiny())


def test_swapped_values_go_back_even_after_an_error() -> None:
    denoiser = tiny()
    add_adapter(denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    before = {name: value.clone() for name, value in adapter_state(denoiser).items()}
    seen = {}

    def fail_while_swapped() -> None:
        with swapped(denoiser, filled(denoiser)):
            seen.update({name: value.clone() for name, value in adapter_state(denoiser).items()})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_swapped()
    assert all(torch.equal(value, filled(denoiser)[name]) for name, value in seen.items())
    assert seen.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in adapter_state(denoiser).items())


def test_switching_the_adapter_off_and_on_changes_nothing_else() -> None:
    denoiser = tiny()
    add_adapter(denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    flags = {name: p.requires_grad for name, p in denoiser.named_parameters()}
    values = filled(denoiser)
    load_state(denoiser, values)
    with without_adapter(denoiser):
        assert all(torch.equal(v, values[n]) for n, v in adapter_state(denoiser).items())
    assert {name: p.requires_grad for name, p in denoiser.named_parameters()} == flags


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_wrapped_model_edits_and_saves_like_the_bare_one(process_group: None) -> None:
    backbone = FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=24)
    add_adapter(backbone.denoiser, rank=2, alpha=2.0, targets=ATTENTION, seed=0)
    load_state(backbone.denoiser, filled(backbone.denoiser))
    wrapped = nn.parallel.DistributedDataParallel(backbone.denoiser)
    assert unwrapped(wrapped) is backbone.denoiser
    assert adapter_state(wrapped).keys() == adapter_state(backbone.denoiser).keys()
    assert torch.equal(edited(backbone, wrapped), edited(backbone, backbone.denoiser))


def picture() -> Tensor:
    return torch.randint(0, 256, (1, 3, 64, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def edited(backbone: FluxKontext, denoiser: nn.Module) -> Tensor:
    return backbone.edit(
        denoiser,
        picture(),
        [PROMPT],
        num_steps=3,
        guidance=2.5,
        generators=[torch.Generator().manual_seed(4)],
    )


@pytest.mark.parametrize("preset", LORA_PRESETS)
@pytest.mark.parametrize(("rank", "alpha"), [(4, 16.0), (4, 4.0)])
def test_stock_pipeline_loads_the_file_and_edits_the_same(tmp_path: Path, preset: str, rank: int, alpha: float) -> None:
    backbone = FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=24)
    base = edited(backbone, backbone.denoiser)
    add_adapter(backbone.denoiser, rank=rank, alpha=alpha, targets=LORA_PRESETS[preset], seed=0)
    load_state(backbone.denoiser, filled(backbone.denoiser))
    trained = edited(backbone, backbone.denoiser)
    assert not torch.equal(trained, base)
    backbone.save_adapter(adapter_state(backbone.denoiser), str(tmp_path), rank=rank, alpha=alpha)

    stock = load_pipeline("random_tiny", torch.float32)
    stock.load_lora_weights(str(tmp_path))
    image = stock(
        image=Image.fromarray(picture()[0].permute(1, 2, 0).numpy()),
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


def test_stored_names_have_the_prefix_and_metadata_keeps_alpha(tmp_path: Path) -> None:
    import json

    from safetensors import safe_open

    backbone = FluxKontext(weights="random_tiny", dtype="bfloat16", max_text_tokens=24)
    add_adapter(backbone.denoiser, rank=4, alpha=16.0, targets=ATTENTION, seed=0)
    state = adapter_state(backbone.denoiser)
    backbone.save_adapter(state, str(tmp_path), rank=4, alpha=16.0)
    with safe_open(str(tmp_path / "pytorch_lora_weights.safetensors"), "pt") as file:
        assert set(file.keys()) == {f"transformer.{name}" for name in state}
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
        metadata = json.loads(file.metadata()["lora_adapter_metadata"])
    assert metadata["transformer.lora_alpha"] == 16.0
    assert metadata["transformer.r"] == 4


def test_wrong_rank_is_not_written(tmp_path: Path) -> None:
    backbone = FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=24)
    add_adapter(backbone.denoiser, rank=4, alpha=16.0, targets=ATTENTION, seed=0)
    with pytest.raises(ValueError, match=r"rank 8 was to be written, but \d+ of \d+ matrices"):
        backbone.save_adapter(adapter_state(backbone.denoiser), str(tmp_path), rank=8, alpha=16.0)
    assert list(tmp_path.iterdir()) == []
