"""Latents as the editors see them: packing, positions, time and the map of changed pixels. Pure.

Shape legend: B batch, C latent channels, H W pixels, h w latent cells, N image tokens.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_TIMESTEP_DIVISOR = 1000
"""What the pipelines divide the scheduler's timesteps by, whatever their number."""
CHANGE_THRESHOLD = 16 / 255
"""A pixel counts as changed when a colour moves by more than this (0..1). Ours: above the noise that video
compression leaves between two frames of a still scene, below a faint shadow; not tuned."""


def pack(latents: Tensor) -> Tensor:
    """Turns ``[B, C, h, w]`` into tokens of 2x2 cells ``[B, h/2 * w/2, 4C]``.

    Source: FluxKontextPipeline._pack_latents, diffusers.
    """
    batch, channels, height, width = latents.shape
    cells = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, (height // 2) * (width // 2), 4 * channels)


def unpack(tokens: Tensor, *, height: int, width: int) -> Tensor:
    """Turns tokens ``[B, N, 4C]`` back into ``[B, C, h, w]`` of ``height`` and ``width`` latent cells."""
    batch, _, channels = tokens.shape
    cells = tokens.reshape(batch, height // 2, width // 2, channels // 4, 2, 2)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels // 4, height, width)


def token_positions(target: Tensor, source: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the ids of [target, source] tokens, ``[N + N', 3]``: 0 or 1, row, column, each grid from 0.

    The grids overlap on purpose; the first column alone tells them apart. One id list serves the whole batch.

    Args:
        target: ``[B, C, h, w]``, only its shape and device count.
        source: ``[B, C, h', w']``.
        dtype: the pipeline keeps ids in the dtype of its latents.

    Source: FluxKontextPipeline.prepare_latents, diffusers.
    """
    grids = [_grid(latents, mark) for mark, latents in enumerate((target, source))]
    return on_device(torch.cat(grids).to(dtype), target.device)


def on_device(value: Tensor, device: torch.device) -> Tensor:
    """Returns ``value`` on ``device``; to a GPU through pinned memory, so that the host queues on without waiting."""
    if device.type != "cuda" or value.is_cuda:
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def pipeline_time(sigma: Tensor, scheduler: Any, dtype: torch.dtype) -> Tensor:
    """Returns the transformer's time in 0..1 as the stock pipelines derive it: scale, cast, then divide.

    The one rule of both backbones. sigma stays float32 up to the scheduler's grid; dividing before the cast moves the
    time by up to 4/1000 in bfloat16.

    Args:
        sigma: ``[B]`` float32 in 0..1.
        scheduler: the pipeline's; its timesteps are sigma times ``num_train_timesteps``.
        dtype: of the pipeline's latents.

    Source: FluxKontextPipeline.__call__ and QwenImageEditPipeline.__call__, diffusers.
    """
    return (sigma * int(scheduler.config.num_train_timesteps)).to(dtype) / _TIMESTEP_DIVISOR


def time_shift(scheduler: Any, num_tokens: int) -> float:
    """Returns the ``mu`` by which the scheduler shifts the sigmas of a target of ``num_tokens``.

    The one rule of both backbones. Qwen-Image-Edit's scheduler then stretches its grid so that it ends at
    ``shift_terminal``; that depends on the number of steps and is left to edits.

    Source: FluxKontextPipeline.__call__ and QwenImageEditPipeline.__call__, diffusers, which count the same.
    """
    from diffusers.pipelines.flux.pipeline_flux_kontext import calculate_shift

    config = scheduler.config
    if not config.use_dynamic_shifting:
        return math.log(config.shift)
    return float(
        calculate_shift(
            num_tokens,
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
    )


def changed_share(source: Tensor, target: Tensor, cell_px: int) -> Tensor:
    """Returns the share of changed pixels in each latent cell, float32 ``[B, 1, h, w]`` in 0..1.

    Args:
        source: uint8 ``[B, 3, H, W]``.
        target: uint8 of the same shape.
        cell_px: side of a cell in pixels.

    Raises:
        ValueError: the shapes differ.
    """
    if source.shape != target.shape:
        raise ValueError(
            f"Changed pixels need two pictures of one shape, found {tuple(source.shape)} and {tuple(target.shape)}."
        )
    difference = (source.float() - target.float()).abs().amax(dim=1, keepdim=True) / 255
    return F.avg_pool2d((difference > CHANGE_THRESHOLD).float(), cell_px)


def _grid(latents: Tensor, mark: int) -> Tensor:
    rows, columns = latents.shape[-2] // 2, latents.shape[-1] // 2
    ids = torch.zeros(rows, columns, 3)
    ids[..., 0] = mark
    ids[..., 1] = torch.arange(rows)[:, None]
    ids[..., 2] = torch.arange(columns)[None, :]
    return ids.reshape(rows * columns, 3)
