"""In which dtype an adapter multiplies, apart from the float32 that its weights are kept and updated in."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RoundedProduct(nn.Linear):
    """A matrix of an adapter whose product is computed in another dtype than its weight's, as torch.autocast does it.

    What waits for the backward pass are input and weight in that dtype; the gradient reaches the weight in its own.
    """

    def __init__(self, matrix: nn.Linear, dtype: torch.dtype) -> None:
        """Takes over the very weight of ``matrix``, which has no bias."""
        # On the meta device torch draws nothing for the weight that is let go of.
        super().__init__(matrix.in_features, matrix.out_features, bias=False, device="meta")
        self.weight = matrix.weight
        self.compute_dtype = dtype

    def forward(self, input: Tensor) -> Tensor:
        """Returns the product ``[..., out]`` of ``[..., in]`` in ``compute_dtype``."""
        return F.linear(input.to(self.compute_dtype), self.weight.to(self.compute_dtype))


def compute_in(denoiser: nn.Module, dtype: torch.dtype, *, adapter_name: str) -> None:
    """Has the adapter multiply in ``dtype``; names, weights and what files say of them stay as they are.

    peft's layers, quantised ones included, leave their inputs as they come from then on, where they else copy them
    into the dtype of the adapter's weights. They must not be of DoRA, which multiplies with the weights elsewhere too.
    """
    from peft.tuners.lora import LoraLayer

    for layer in [module for module in denoiser.modules() if isinstance(module, LoraLayer)]:
        layer.cast_input_dtype_enabled = False
        for matrices in (layer.lora_A, layer.lora_B):
            matrices[adapter_name] = RoundedProduct(matrices[adapter_name], dtype)


def compute_dtype_of(denoiser: nn.Module) -> torch.dtype:
    """Returns what a model's adapter multiplies in: float32 where ``compute_in`` was not called."""
    rounded = next((module for module in denoiser.modules() if isinstance(module, RoundedProduct)), None)
    return torch.float32 if rounded is None else rounded.compute_dtype
