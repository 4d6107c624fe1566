"""Trains the toy editor's picture decoder on the codes of the set encoder."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from physedit.models.toy.fitting import FitPlan, fit
from physedit.models.toy.pairs import NaivePairs, as_network_input
from physedit.models.toy.set_encoder import code_of, read_components

BATCH_SIZE = 8


def train_decoder(autoencoder: AutoencoderKL, pairs: NaivePairs, plan: FitPlan, snapshot: Path) -> None:
    """Trains ``autoencoder.decoder`` in place, by mean squared error over all pictures and their mirror images."""
    pictures = pairs.pictures
    components, config = read_components(autoencoder), autoencoder.config

    def loss_of(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(pictures), (BATCH_SIZE,), generator=generator)
        batch = as_network_input(pictures[rows])
        if torch.rand((), generator=generator) < 0.5:
            batch = batch.flip(-1)
        latents = code_of(components, batch) / config.scaling_factor + config.shift_factor
        with torch.autocast("cpu", torch.bfloat16):  # convolutions take 0.6 of their float32 time where the CPU has it
            decoded = autoencoder.decoder(latents)
        return nn.functional.mse_loss(decoded.float(), batch)

    fit(plan, autoencoder.decoder, loss_of, snapshot)
