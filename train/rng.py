"""Random numbers of training: a pure function of (seed, stream, position), never of rank or history."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from physedit.data_loaders.streams import stream_seed
from physedit.train.objective import Draws


def draw(seed: int, positions: Sequence[int], like: Tensor) -> Draws:
    """Returns the noise and the sigma draw of the samples at ``positions`` of the run.

    Drawn on the CPU, so that every device and every number of ranks trains with the same numbers. The copy to a GPU
    is not waited for.

    Args:
        seed: the run's seed.
        positions: global positions of the samples, one per row of ``like``.
        like: ``[B, C, h, w]``; gives shape and device.
    """
    pinned = like.is_cuda
    noise = torch.empty((len(positions), *like.shape[1:]), pin_memory=pinned)
    normal = torch.empty(len(positions), pin_memory=pinned)
    for row, position in enumerate(positions):
        generator = torch.Generator().manual_seed(stream_seed(seed, "noise", position))
        torch.randn((), generator=generator, out=normal[row])
        torch.randn(like.shape[1:], generator=generator, out=noise[row])
    return Draws(noise.to(like.device, non_blocking=True), normal.to(like.device, non_blocking=True))


@contextmanager
def dropout_stream(seed: int, position: int, device: torch.device) -> Iterator[None]:
    """Within the context, dropout draws from (seed, position); afterwards the global generators are as before.

    Dropout layers take no generator, so the global ones are lent to them. A block that gradient checkpointing
    recomputes gets the state it had in the forward pass, hence the same mask. The masks on CUDA are not those on
    the CPU.

    Args:
        seed: the run's seed.
        position: global position of the micro batch's first sample. Micro batches are the same slices of the run
            for every number of ranks, so the masks are too.
        device: of the denoiser.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(stream_seed(seed, "dropout", position))
        yield
