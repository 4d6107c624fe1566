"""Trains the picture decoder of the toy Qwen-Image-Edit on the codes of its set encoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import Tensor, nn

from physedit.models.toy.fitting import FitPlan, fit
from physedit.models.toy.pairs import NaivePairs, as_network_input
from physedit.models.toy.qwen.set_encoder import read_components
from physedit.models.toy.set_encoder import code_of

BATCH_SIZE = 8


def train_decoder(autoencoder: AutoencoderKLQwenImage, pairs: NaivePairs, plan: FitPlan, snapshot: Path) -> None:
    """Trains ``autoencoder.decoder`` in place, by mean squared error over all pictures and their mirror images.

    Afterwards the decoder takes single frames only.
    """
    pictures = pairs.pictures
    components, config = read_components(autoencoder), autoencoder.config
    std, mean = (torch.tensor(value)[:, None, None] for value in (config.latents_std, config.latents_mean))
    take_single_frames(autoencoder.decoder)

    def loss_of(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pictures), (BATCH_SIZE,), generator=generator)
        batch = as_network_input(pictures[rows])
        if torch.rand((), generator=generator) < 0.5:
            batch = batch.flip(-1)
        latents = code_of(components, batch) * std + mean
        with torch.autocast("cpu", torch.bfloat16):  # convolutions take 0.6 of their float32 time where the CPU has it
            decoded = autoencoder.decoder(latents[:, :, None])[:, :, 0]
        return nn.functional.mse_loss(decoded.float(), batch)

    fit(plan, autoencoder.decoder, loss_of, snapshot)


def take_single_frames(decoder: nn.Module) -> None:
    """Makes causal convolutions compute only what a single frame needs: two-dimensional ones, at half the time."""
    for module in decoder.modules():
        if isinstance(module, QwenImageCausalConv3d):
            module.forward = partial(_convolve_frame, module)


def _convolve_frame(conv: QwenImageCausalConv3d, frame: Tensor) -> Tensor:
    """Returns what ``conv`` makes of ``[B, C, 1, H, W]``; zeros stand before the frame."""
    padding = conv.kernel_size[-1] // 2
    return nn.functional.conv2d(frame[:, :, 0], conv.weight[:, :, -1], conv.bias, padding=padding)[:, :, None]
