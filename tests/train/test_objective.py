"""The flow-matching objective against its closed forms."""

import math
from itertools import pairwise

import pytest
import torch

from physedit.models.backbone import Conditioning
from physedit.train.objective import Draws, FlowMatching


def conditioning_of(batch: int = 3, time_shift: float = 1.15) -> Conditioning:
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(batch, 4, 6, 6, generator=generator)
    change = torch.zeros(batch, 1, 6, 6)
    change[:, :, :2, :2] = 1.0
    return Conditioning(target=latents, sources=(latents,), text={}, change=change, time_shift=time_shift)


def draws_of(conditioning: Conditioning) -> Draws:
    generator = torch.Generator().manual_seed(2)
    batch = len(conditioning.target)
    noise = torch.randn(conditioning.target.shape, generator=generator)
    return Draws(noise, torch.randn(batch, generator=generator))


def test_the_true_velocity_has_no_loss_and_its_negative_has():
    conditioning = conditioning_of()
    draws = draws_of(conditioning)
    velocity = draws.noise - conditioning.target
    assert FlowMatching().loss(lambda noisy, sigma: velocity, conditioning, draws).loss == 0.0
    assert FlowMatching().loss(lambda noisy, sigma: -velocity, conditioning, draws).loss > 1.0


def test_the_noisy_input_is_the_straight_line_between_target_and_noise():
    conditioning = conditioning_of()
    draws = draws_of(conditioning)
    seen = {}

    def velocity(noisy, sigma):
        seen.update(noisy=noisy, sigma=sigma)
        return noisy

    FlowMatching().loss(velocity, conditioning, draws)
    level = seen["sigma"].view(-1, 1, 1, 1)
    assert torch.equal(seen["noisy"], (1 - level) * conditioning.target + level * draws.noise)


def test_euler_from_noise_with_the_true_velocity_returns_the_target():
    conditioning = conditioning_of()
    draws = draws_of(conditioning)
    state, sigmas = draws.noise, torch.linspace(1, 0, 9)
    for now, then in pairwise(sigmas):
        state = state + (then - now) * (draws.noise - conditioning.target)
    assert torch.allclose(state, conditioning.target, atol=1e-6)  # eight float32 sums


@pytest.mark.parametrize("time_shift", [0.5, 1.15])
def test_sigma_is_logit_normal_shifted_by_the_pipelines_mu(time_shift):
    normal = torch.randn(20_000, generator=torch.Generator().manual_seed(3))
    sigma = FlowMatching().sigma(normal, time_shift)
    # The shift maps odds o to o * exp(mu), so the median of sigma is sigmoid(mu) and its logit is normal around mu.
    assert sigma.median().item() == pytest.approx(1 / (1 + math.exp(-time_shift)), abs=0.01)
    logit = torch.logit(sigma.double())
    assert logit.mean().item() == pytest.approx(time_shift, abs=0.03)
    assert logit.std().item() == pytest.approx(1.0, abs=0.03)


def test_without_shift_the_median_is_one_half():
    normal = torch.randn(20_000, generator=torch.Generator().manual_seed(3))
    assert FlowMatching(shift="none").sigma(normal, 1.15).median().item() == pytest.approx(0.5, abs=0.01)


def test_the_weight_of_every_sample_has_mean_one_and_the_asked_ratio():
    weight = FlowMatching(changed_weight=4.0).weight(conditioning_of().change)
    assert torch.allclose(weight.mean(dim=(1, 2, 3)), torch.ones(3))
    assert (weight[:, 0, 0, 0] / weight[:, 0, 5, 5]).tolist() == pytest.approx([4.0] * 3)


def test_weight_one_is_the_plain_mean_squared_error():
    conditioning = conditioning_of()
    draws = draws_of(conditioning)
    terms = FlowMatching().loss(lambda noisy, sigma: torch.zeros_like(noisy), conditioning, draws)
    expected = ((draws.noise - conditioning.target) ** 2).mean()
    assert terms.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert terms.per_sample.shape == (3,)


@pytest.mark.parametrize("wrong", [{"shift": "fixed"}, {"sigma_std": 0.0}, {"changed_weight": 0.5}])
def test_a_setting_without_meaning_is_refused(wrong):
    with pytest.raises(ValueError, match="objective"):
        FlowMatching(**wrong)
