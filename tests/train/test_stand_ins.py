"""A slot without a sample gives no gradient, and leaves that of the others as it was."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.support.plain_pairs import PlainPairs

from physedit.data_loaders.sample import EditBatch, PromptLevel, collate
from physedit.models.flux_kontext import FluxKontext
from physedit.train.objective import FlowMatching, LossTerms
from physedit.train.rng import draw
from physedit.train.state import trainable

SAMPLES = [PlainPairs(9, sizes=[(16, 16)]).sample(row, PromptLevel.EXPLICIT) for row in range(4)]


def gradients(editor: FluxKontext, batch: EditBatch, positions: tuple[int, ...]) -> dict[str, torch.Tensor]:
    conditioning = editor.encode(batch)
    terms = FlowMatching().loss(
        lambda noisy, sigma: editor.velocity(editor.denoiser, noisy, sigma, conditioning),
        conditioning,
        draw(3, positions, conditioning.target),
    )
    editor.denoiser.zero_grad(set_to_none=True)
    terms.weighted(batch.weights).loss.backward()
    return {name: p.grad.clone() for name, p in trainable(editor.denoiser).items() if p.grad is not None}


@pytest.fixture
def moved(new_editor: Callable[[], FluxKontext]) -> FluxKontext:
    """An editor whose B matrices are not zero, so that all of the adapter has a gradient."""
    editor = new_editor()
    generator = torch.Generator().manual_seed(0)
    for parameter in trainable(editor.denoiser).values():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return editor


def test_gradient_is_that_of_the_remaining_samples_over_the_same_denominator(moved: FluxKontext) -> None:
    stand_in = replace(SAMPLES[0], sample_id="nothing for plain:3")
    dropped = gradients(moved, collate([*SAMPLES[:3], stand_in], [1.0, 1.0, 1.0, 0.0]), (10, 11, 12, 13))
    remaining = gradients(moved, collate(SAMPLES[:3]), (10, 11, 12))
    whole = gradients(moved, collate(SAMPLES), (10, 11, 12, 13))
    assert len(dropped) > 20
    for name, value in dropped.items():
        scale = remaining[name].abs().max()
        assert torch.allclose(value, remaining[name] * 3 / 4, rtol=1e-4, atol=1e-4 * float(scale)), (
            name
        )  # sums in another order
        assert not torch.allclose(value, whole[name], rtol=1e-2)


def test_micro_batch_of_stand_ins_alone_has_a_loss_and_gradient_of_zero(moved: FluxKontext) -> None:
    nothing = gradients(moved, collate(SAMPLES[:1], [0.0]), (10,))
    assert nothing
    assert not any(value.any() for value in nothing.values())


def test_weights_of_one_leave_the_terms_as_they_are() -> None:
    terms = LossTerms(torch.tensor(2.0), torch.tensor([1.0, 3.0]), torch.zeros(2))
    assert terms.weighted((1.0, 1.0)) is terms
    assert terms.weighted((1.0, 0.0)).loss == 0.5
