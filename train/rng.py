"""Random numbers of training: a pure function of (seed, stream, position), never of rank or history."""

from collections.abc import Sequence

import torch
from torch import Tensor

from physedit.data_loaders.streams import stream_seed
from physedit.train.objective import Draws


def draw(seed: int, positions: Sequence[int], like: Tensor) -> Draws:
    """Returns the noise and the sigma draw of the samples at ``positions`` of the run.

    Drawn on the CPU, so that every device and every number of ranks trains with the same numbers.

    Args:
        seed: the run's seed.
        positions: global positions of the samples, one per row of ``like``.
        like: ``[B, C, h, w]``; gives shape and device.
    """
    noise, normal = [], []
    for position in positions:
        generator = torch.Generator().manual_seed(stream_seed(seed, "noise", position))
        normal.append(torch.randn((), generator=generator))
        noise.append(torch.randn(like.shape[1:], generator=generator))
    return Draws(torch.stack(noise).to(like.device), torch.stack(normal).to(like.device))
