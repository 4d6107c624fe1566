"""A stock pipeline whose transformer knows the answer: whatever it is asked to edit, it arrives at given latents."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from physedit.models.latents import pack


@contextmanager
def arriving_at(denoiser: nn.Module, answer: Tensor) -> Iterator[None]:
    """Within the context one edit with ``denoiser`` arrives at the latents ``answer``, ``[1, C, h, w]``.

    In place of its prediction for the target tokens it returns n - x_0, where n is its first input.
    """
    true = pack(answer)
    num_target, noise = true.shape[1], []

    def predict(module: object, args: object, inputs: dict[str, Any], output: tuple[Tensor]) -> tuple[Tensor]:
        if not noise:
            noise.append(inputs["hidden_states"][:, :num_target].clone())
        return (torch.cat([noise[0] - true, output[0][:, num_target:]], dim=1),)

    handle = denoiser.register_forward_hook(predict, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
