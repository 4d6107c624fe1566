"""Flow matching on latents. Knows no backbone.

Shape legend: B batch, C latent channels, h w latent cells.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from physedit.models.backbone import Conditioning

VelocityFunction = Callable[[Tensor, Tensor], Tensor]
"""(noisy [B, C, h, w], sigma [B]) -> velocity [B, C, h, w], float32."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of a batch: ``noise`` ``[B, C, h, w]`` and ``normal`` ``[B]``, standard normal, float32."""

    noise: Tensor
    normal: Tensor


@dataclass(frozen=True, slots=True)
class LossTerms:
    """``loss`` is the mean of ``per_sample`` ``[B]``; ``sigma`` ``[B]`` is the noise level of each sample."""

    loss: Tensor
    per_sample: Tensor
    sigma: Tensor

    def weighted(self, weights: Sequence[float]) -> "LossTerms":
        """Returns the terms with ``loss`` = sum(weight * loss of the sample) / B.

        The denominator stays B, so a sample of weight 0 leaves what the others give as it is.
        """
        if all(weight == 1.0 for weight in weights):
            return self
        factors = torch.tensor(weights, dtype=self.per_sample.dtype, pin_memory=self.per_sample.is_cuda)
        on_device = factors.to(self.per_sample.device, non_blocking=True)
        return replace(self, loss=(self.per_sample * on_device).mean())


class Objective(Protocol):
    """A training loss on latents."""

    def loss(self, velocity: VelocityFunction, conditioning: Conditioning, draws: Draws) -> LossTerms:
        """Returns the loss of a batch, float32, with gradient through ``velocity``."""
        ...


@dataclass(frozen=True)
class FlowMatching:
    """Rectified flow: x_t = (1 - sigma) x_0 + sigma n, and the model predicts n - x_0.

    Sigma is drawn from ``distribution`` and then shifted as the pipeline shifts its own schedule for the target's size.

    Source: Esser et al. 2024 (arXiv 2403.03206), equations 12, 13 (flow), 19 (logit-normal), 23 (shift).

    Attributes:
        distribution: ``logit_normal`` or ``uniform``, before the shift.
        sigma_mean: mean of the logit-normal's logit.
        sigma_std: its standard deviation.
        shift: ``pipeline`` shifts by the pipeline's own mu for the target size; ``none`` leaves sigma as drawn.
        changed_weight: weight of the cells that the edit changes against 1 for the others, then scaled so that
            the mean weight of every sample is 1. 1.0 is the plain mean squared error.
    """

    distribution: Literal["logit_normal", "uniform"] = "logit_normal"
    sigma_mean: float = 0.0
    sigma_std: float = 1.0
    shift: Literal["pipeline", "none"] = "pipeline"
    changed_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.shift not in ("pipeline", "none"):
            raise ValueError(f"objective.shift={self.shift} is not known. Use pipeline or none.")
        if self.distribution not in ("logit_normal", "uniform"):
            raise ValueError(f"objective.distribution={self.distribution} is not known. Use logit_normal or uniform.")
        if self.distribution == "uniform" and (self.sigma_mean, self.sigma_std) != (0.0, 1.0):
            raise ValueError(
                f"objective.sigma_mean={self.sigma_mean} and objective.sigma_std={self.sigma_std} have no effect with "
                f"objective.distribution=uniform. Leave them at 0 and 1, or use logit_normal."
            )
        if self.sigma_std <= 0 or self.changed_weight < 1:
            raise ValueError(
                f"objective.sigma_std={self.sigma_std} must be positive and "
                f"objective.changed_weight={self.changed_weight} at least 1."
            )

    def loss(self, velocity: VelocityFunction, conditioning: Conditioning, draws: Draws) -> LossTerms:
        """Returns the weighted mean squared error of the predicted velocity."""
        sigma = self.sigma(draws.normal, conditioning.time_shift)
        target = conditioning.target.float()
        level = sigma.view(-1, 1, 1, 1)
        noisy = (1.0 - level) * target + level * draws.noise
        error = (velocity(noisy, sigma).float() - (draws.noise - target)) ** 2
        per_sample = (error * self.weight(conditioning.change)).mean(dim=(1, 2, 3))  # [B]
        return LossTerms(per_sample.mean(), per_sample, sigma)

    def sigma(self, normal: Tensor, time_shift: float) -> Tensor:
        """Maps standard normal draws ``[B]`` to noise levels ``[B]`` in 0..1, float32."""
        plain: Tensor
        if self.distribution == "uniform":
            plain = torch.special.ndtr(normal.float())
        else:
            plain = torch.sigmoid(self.sigma_mean + self.sigma_std * normal.float())
        if self.shift == "none":
            return plain
        factor = math.exp(time_shift)
        return factor * plain / (1.0 + (factor - 1.0) * plain)

    def weight(self, change: Tensor) -> Tensor:
        """Returns the cell weights ``[B, 1, h, w]`` with mean 1 per sample from ``change`` in 0..1."""
        weight = 1.0 + (self.changed_weight - 1.0) * change.float()
        return weight / weight.mean(dim=(1, 2, 3), keepdim=True)
