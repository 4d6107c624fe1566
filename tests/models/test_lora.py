"""Adding an adapter, reading and writing its values, switching it."""

import pytest
import torch
from torch import Tensor, nn

from physedit.models.flux_pipeline import LORA_PRESETS
from physedit.models.lora import (
    LoraSettings,
    adapter_state,
    add_adapter,
    load_state,
    preset_targets,
    swapped,
    without_adapter,
)
from physedit.models.random_tiny import build_random_tiny

ATTENTION = LORA_PRESETS["attention"]


def tiny() -> nn.Module:
    return build_random_tiny(0).transformer


def filled(denoiser: nn.Module, seed: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: 0.2 * torch.randn(v.shape, generator=generator) for n, v in adapter_state(denoiser).items()}


def modules(preset: str) -> list[str]:
    report = add_adapter(tiny(), LoraSettings(2, 2.0), targets=LORA_PRESETS[preset], seed=0)
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
    report = add_adapter(tiny(), LoraSettings(3, 3.0), targets=(r"transformer_blocks\.0\.attn\.to_q",), seed=0)
    assert report.names == (
        "transformer_blocks.0.attn.to_q.lora_A.weight",
        "transformer_blocks.0.attn.to_q.lora_B.weight",
    )
    assert report.num_parameters == 2 * 3 * 32


def test_pattern_of_a_whole_name_leaves_its_namesakes_alone() -> None:
    report = add_adapter(tiny(), LoraSettings(2, 2.0), targets=("proj_out",), seed=0)
    assert report.names == ("proj_out.lora_A.weight", "proj_out.lora_B.weight")


def test_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rank must be at least 1, found 0"):
        add_adapter(tiny(), LoraSettings(0, 1.0), targets=ATTENTION, seed=0)


def test_unknown_preset_is_named_with_its_near_match() -> None:
    with pytest.raises(ValueError, match=r"'atention'.*attention_mlp.*Did you mean 'attention'\?"):
        preset_targets(LORA_PRESETS, "atention")


def test_first_values_depend_on_seed_and_name_alone() -> None:
    states = []
    for seed, targets in ((1, ATTENTION), (1, LORA_PRESETS["attention_mlp"]), (2, ATTENTION)):
        torch.manual_seed(len(states))
        denoiser = tiny()
        add_adapter(denoiser, LoraSettings(2, 2.0), targets=targets, seed=seed)
        states.append(adapter_state(denoiser))
    first, wider, other = states
    assert all(torch.equal(value, wider[name]) for name, value in first.items())
    a_matrices = [name for name in first if "lora_A" in name]
    assert not any(torch.equal(first[name], other[name]) for name in a_matrices)
    assert len({tuple(first[name].flatten().tolist()) for name in a_matrices}) == len(a_matrices)
    assert all(value.abs().max() == 0 for name, value in first.items() if "lora_B" in name)


def test_a_matrices_fill_their_range() -> None:
    denoiser = tiny()
    add_adapter(denoiser, LoraSettings(16, 2.0), targets=(r"transformer_blocks\.0\.ff\.net\.2",), seed=1)
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
    add_adapter(denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_adapter_matrices_are_trainable() -> None:
    denoiser = tiny()
    report = add_adapter(denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
    trainable = [name for name, p in denoiser.named_parameters() if p.requires_grad]
    assert [name.replace(".default", "") for name in trainable] == list(report.names)


def test_state_is_a_view_of_the_live_values() -> None:
    denoiser = tiny()
    add_adapter(denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
    state = adapter_state(denoiser)
    load_state(denoiser, filled(denoiser))
    assert all(torch.equal(value, filled(denoiser)[name]) for name, value in state.items())
    assert not any(value.requires_grad for value in state.values())


def test_state_of_another_adapter_is_refused_whole() -> None:
    denoiser = tiny()
    add_adapter(denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
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
    add_adapter(denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
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
    add_adapter(denoiser, LoraSettings(2, 2.0), targets=ATTENTION, seed=0)
    flags = {name: p.requires_grad for name, p in denoiser.named_parameters()}
    values = filled(denoiser)
    load_state(denoiser, values)
    with without_adapter(denoiser):
        assert all(torch.equal(v, values[n]) for n, v in adapter_state(denoiser).items())
    assert {name: p.requires_grad for name, p in denoiser.named_parameters()} == flags
