"""A few real optimizer steps of every editor: what moves, what stays, and what the loss looks at."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.memory_editors import EDITORS, batch_of, edit, picture
from tests.support.qwen_editors import PLUS, recorded
from torch import Tensor, nn

from physedit.models.backbone import Conditioning
from physedit.models.loading import modules_of
from physedit.models.lora import LoraReport, LoraSettings, adapter_state, add_adapter, load_state
from physedit.train.objective import FlowMatching
from physedit.train.rng import draw
from physedit.train.state import trainable

BUILDERS: Mapping[str, Callable[..., Any]] = {
    **EDITORS,
    "qwen_plus": lambda **options: EDITORS["qwen_image_edit"](
        **{"pipeline": PLUS, "vision_area_px": 64 * 64, **options}
    ),
}
NUM_STEPS = 3


def prepared(name: str, **options: Any) -> tuple[Any, LoraReport]:
    editor = BUILDERS[name](**options)
    targets = editor.lora_presets["attention_mlp"]
    report = add_adapter(editor.denoiser, LoraSettings(4, 8.0), targets=targets, seed=0)
    editor.denoiser.train()
    return editor, report


def loss(editor: Any, conditioning: Conditioning, position: int) -> Tensor:
    terms = FlowMatching().loss(
        lambda noisy, sigma: editor.velocity(editor.denoiser, noisy, sigma, conditioning),
        conditioning,
        draw(3, range(position, position + len(conditioning.target)), conditioning.target),
    )
    return terms.loss


def take_steps(editor: Any) -> list[float]:
    """Returns the losses of ``NUM_STEPS`` steps of AdamW."""
    optimizer = torch.optim.AdamW(trainable(editor.denoiser).values(), lr=1e-2)
    losses = []
    for step in range(NUM_STEPS):
        value = loss(editor, editor.encode(batch_of(2 * step, 2 * step + 1)), 2 * step)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(value.detach()))
    return losses


def base_weights(editor: Any) -> dict[str, Tensor]:
    """Returns every weight and buffer of every part of the pipeline that is no adapter's."""
    parts: Mapping[str, nn.Module] = modules_of(editor._pipeline)
    assert {"transformer", "vae", "text_encoder"} <= parts.keys()
    return {
        f"{part}.{name}": value
        for part, module in parts.items()
        for name, value in module.state_dict().items()
        if "lora_" not in name
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", BUILDERS)
def test_steps_move_every_adapter_matrix_in_float32_and_no_base_weight(name: str, dtype: str) -> None:
    editor, report = prepared(name, dtype=dtype)
    base = {key: value.clone() for key, value in base_weights(editor).items()}
    first = {key: value.clone() for key, value in adapter_state(editor.denoiser).items()}
    take_steps(editor)
    after = base_weights(editor)
    assert after.keys() == base.keys()
    assert [key for key, value in base.items() if not torch.equal(value, after[key])] == []
    moved = {key for key, value in adapter_state(editor.denoiser).items() if not torch.equal(value, first[key])}
    assert moved == set(report.names)
    assert len(trainable(editor.denoiser)) == len(report.names) > 20
    assert {value.dtype for value in trainable(editor.denoiser).values()} == {torch.float32}
    floats = {value.dtype for value in base.values() if value.is_floating_point()}
    assert getattr(torch, dtype) in floats


@pytest.mark.parametrize("name", BUILDERS)
def test_steps_with_recomputed_blocks_give_the_same_adapter(name: str) -> None:
    """With a frozen base the re-entrant form of recomputation gives adapters no gradient at all."""
    found = []
    for recomputes in (False, True):
        editor, _ = prepared(name, gradient_checkpointing=recomputes)
        losses = take_steps(editor)
        state = adapter_state(editor.denoiser)
        assert all(value.norm() > 0 for value in state.values())
        found.append((losses, state))
    (losses, plain), (again, recomputed) = found
    assert losses == again
    assert all(torch.equal(value, recomputed[key]) for key, value in plain.items())


@pytest.mark.parametrize("name", BUILDERS)
def test_the_loss_looks_at_target_tokens_alone(name: str) -> None:
    """Not-a-number in place of what the transformer says of references changes neither loss nor gradient."""
    editor, _ = prepared(name)
    generator = torch.Generator().manual_seed(1)
    state = adapter_state(editor.denoiser)
    load_state(editor.denoiser, {key: 0.1 * torch.randn(v.shape, generator=generator) for key, v in state.items()})
    batch = batch_of(1)
    if editor.max_sources > 1:
        batch = replace(batch, references=((picture(7), picture(8)),))
    conditioning = editor.encode(batch)
    num_target = conditioning.target[0, 0].numel() // 4

    def spoil(module: object, args: object, output: tuple[Tensor]) -> tuple[Tensor]:
        assert output[0].shape[1] == num_target * (1 + len(conditioning.sources))
        nothing = torch.full_like(output[0][:, num_target:], torch.nan)
        return (torch.cat([output[0][:, :num_target], nothing], dim=1),)

    found = []
    for spoils in (False, True):
        handle = editor.denoiser.register_forward_hook(spoil) if spoils else None
        editor.denoiser.zero_grad(set_to_none=True)
        value = loss(editor, conditioning, 5)
        value.backward()
        gradients = {key: p.grad for key, p in trainable(editor.denoiser).items()}
        found.append((value.detach(), gradients))
        if handle is not None:
            handle.remove()
    assert found[0][0] == found[1][0]
    for key, gradient in found[0][1].items():
        assert gradient is not None
        assert torch.equal(gradient, found[1][1][key]), key


@pytest.mark.parametrize("name", ["qwen_image_edit", "qwen_plus"])
def test_the_source_changes_the_text_states_of_an_edit_as_it_does_in_training(name: str) -> None:
    editor = BUILDERS[name]()
    states = "encoder_hidden_states"
    in_edits = []
    for seed in (1, 2):
        with recorded(editor.denoiser) as calls:
            edit(editor, picture(seed))
        trained = editor.encode(batch_of(seed)).text["prompts"]
        assert torch.equal(calls[0].inputs[states], trained)
        in_edits.append(calls[0].inputs[states])
    first, second = in_edits
    assert first.shape == second.shape
    assert (first - second).norm() / first.norm() > 1e-2  # rounding is a thousandth of that
