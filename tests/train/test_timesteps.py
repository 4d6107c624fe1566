"""How often each noise level is trained, against the closed form and the stock scheduler's own rule."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from tests.support.memory_editors import EDITORS
from torch import Tensor

from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Conditioning
from physedit.models.flux_pipeline import load_pipeline as load_flux
from physedit.models.latents import pipeline_time
from physedit.models.qwen_pipeline import load_pipeline as load_qwen
from physedit.train.objective import Draws, FlowMatching
from physedit.train.rng import draw

NUM_DRAWS = 20_000
NUM_BINS = 20
# 99.99 % of chi-squared values with 19 degrees of freedom lie below; the draws are fixed, so the test cannot flicker.
LARGEST_CHI_SQUARED = 52.0
SCHEDULERS: dict[str, Callable[[], FlowMatchEulerDiscreteScheduler]] = {
    "flux_kontext": lambda: load_flux("random_tiny", torch.float32).scheduler,
    "qwen_image_edit": lambda: load_qwen("QwenImageEditPipeline", "random_tiny", torch.float32).scheduler,
}
MU = {("flux_kontext", 256): 0.5, ("flux_kontext", 1024): 1.15, ("qwen_image_edit", 256): 0.5}
"""The published ends: 0.5 at 256 tokens of a 256x256 target; 4,096 tokens at 1024x1024."""


@cache
def normals() -> Tensor:
    """Draws as a run makes them, at its first positions."""
    return draw(3, range(NUM_DRAWS), torch.zeros(NUM_DRAWS, 1, 1, 1)).normal


def uniform_share(sigma: Tensor) -> Tensor:
    return sigma


def logit_normal_share(mean: float, std: float) -> Callable[[Tensor], Tensor]:
    """The share of a logit-normal below sigma. Source: Esser et al. 2024 (arXiv 2403.03206), equation 19."""
    return lambda sigma: torch.special.ndtr((torch.logit(sigma) - mean) / std)


def shifted_share(plain: Callable[[Tensor], Tensor], mu: float) -> Callable[[Tensor], Tensor]:
    """The share below sigma once each level s has gone to e^mu s / (1 + (e^mu - 1) s). Source: equation 23 there."""
    return lambda sigma: plain(sigma / (sigma + math.exp(mu) * (1 - sigma)))


CASES = {
    "uniform": (FlowMatching(distribution="uniform", shift="none"), 0.0, uniform_share),
    "uniform, shifted": (FlowMatching(distribution="uniform"), 1.15, shifted_share(uniform_share, 1.15)),
    "logit-normal": (FlowMatching(shift="none"), 0.0, logit_normal_share(0.0, 1.0)),
    "logit-normal, moved": (
        FlowMatching(sigma_mean=-0.4, sigma_std=1.6, shift="none"), 0.0, logit_normal_share(-0.4, 1.6),
    ),
    "logit-normal, shifted": (FlowMatching(), 1.15, shifted_share(logit_normal_share(0.0, 1.0), 1.15)),
    "logit-normal, shifted less": (FlowMatching(), 0.5, shifted_share(logit_normal_share(0.0, 1.0), 0.5)),
}  # fmt: skip


def chi_squared(sigma: Tensor, share_below: Callable[[Tensor], Tensor]) -> float:
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)
    expected = share_below(edges).diff() * NUM_DRAWS
    found = torch.histc(sigma.double(), bins=NUM_BINS, min=0, max=1)
    return float(((found - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("case", CASES)
def test_histogram_of_noise_levels_is_the_closed_form(case: str) -> None:
    objective, mu, share_below = CASES[case]
    sigma = objective.sigma(normals(), mu)
    assert sigma.dtype == torch.float32
    assert chi_squared(sigma, share_below) < LARGEST_CHI_SQUARED
    others = [share for name, (_, _, share) in CASES.items() if name != case]
    assert min(chi_squared(sigma, share) for share in others) > 10 * LARGEST_CHI_SQUARED


@cache
def mu_of(name: str, side: int) -> float:
    """Returns the shift with which the backbone trains square targets."""
    picture = torch.zeros(3, side, side, dtype=torch.uint8)
    batch = EditBatch(("a",), (picture,), (picture,), ("Remove the ball.",))
    return EDITORS[name](area_px=side * side).encode_pictures(batch).time_shift


@pytest.mark.parametrize("side", [256, 512, 1024])
@pytest.mark.parametrize("name", EDITORS)
def test_levels_follow_the_schedulers_own_shift_at_every_size(name: str, side: int) -> None:
    """Means of 10,000 levels, against the scheduler's map of the same unshifted levels at its own mu."""
    mu = mu_of(name, side)
    plain = FlowMatching(shift="none").sigma(normals()[:10_000], mu)
    scheduler = SCHEDULERS[name]()
    config = scheduler.config
    tokens = (side / 16) ** 2
    slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    expected_mu = config.base_shift + slope * (tokens - config.base_image_seq_len)
    assert mu == pytest.approx(expected_mu, abs=1e-9)
    assert mu == pytest.approx(MU.get((name, side), mu), abs=1e-9)
    theirs = scheduler.time_shift(expected_mu, 1.0, plain.double())
    ours = FlowMatching().sigma(normals()[:10_000], mu)
    assert (ours.double() - theirs).abs().max() < 1e-6  # float32
    assert ours.mean() > plain.mean() + 0.05  # a shift of 0.5 moves the mean by 0.1


@pytest.mark.parametrize("name", EDITORS)
def test_larger_targets_are_trained_at_higher_noise(name: str) -> None:
    levels = (FlowMatching().sigma(normals()[:10_000], mu_of(name, side)) for side in (256, 1024))
    small, large = (float(sigma.mean()) for sigma in levels)
    assert large > small + 0.01


@pytest.mark.parametrize("name", SCHEDULERS)
def test_time_is_a_thousand_times_sigma_and_input_and_target_are_exact(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    latents = torch.randn(64, 4, 2, 2, generator=generator)
    conditioning = Conditioning(latents, (latents,), {}, torch.zeros(64, 1, 2, 2), 0.8)
    noise = torch.randn(latents.shape, generator=generator)
    seen = {}

    def velocity(noisy: Tensor, sigma: Tensor) -> Tensor:
        seen.update(noisy=noisy, sigma=sigma)
        return torch.zeros_like(noisy)

    terms = FlowMatching().loss(velocity, conditioning, Draws(noise, normals()[:64]))
    level = seen["sigma"].view(-1, 1, 1, 1)
    assert torch.equal(seen["noisy"], (1 - level) * latents + level * noise)
    assert torch.equal(terms.per_sample, ((noise - latents) ** 2).mean(dim=(1, 2, 3)))
    assert torch.equal(terms.sigma, seen["sigma"])
    # The pipelines hand the transformer t / 1000, and the scheduler's t is 1000 times its sigma.
    time = pipeline_time(seen["sigma"], SCHEDULERS[name](), torch.float32)
    assert torch.equal(time, seen["sigma"] * 1000 / 1000)


def test_flat_weight_has_mean_one_whatever_the_change() -> None:
    change = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    for ratio in (1.0, 3.0, 10.0):
        weight = FlowMatching(changed_weight=ratio).weight(change)
        assert weight.mean(dim=(1, 2, 3)).tolist() == pytest.approx([1.0] * 5, rel=1e-6)


@pytest.mark.parametrize("setting", [{"sigma_mean": 0.5}, {"sigma_std": 2.0}])
def test_settings_of_the_logit_normal_are_refused_with_uniform_levels(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"have no effect with objective\.distribution=uniform"):
        FlowMatching(distribution="uniform", **setting)


def test_unknown_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match=r"objective\.distribution=bell is not known"):
        FlowMatching(distribution="bell")
