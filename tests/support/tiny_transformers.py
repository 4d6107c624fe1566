"""Transformers of both families at tiny size, seeded, and one forward pass through each."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import torch
from diffusers import FluxKontextPipeline, FluxTransformer2DModel, QwenImageEditPipeline, QwenImageTransformer2DModel
from torch import Tensor, nn

from physedit.models import flux_pipeline, qwen_presets
from physedit.models.lora import adapter_state, load_state

NUM_BLOCKS = 3
NUM_TARGET_TOKENS = 12


@dataclass(frozen=True)
class Family:
    """One family: how it is built, called, saved and adapted."""

    name: str
    build: Callable[[], nn.Module]
    forward: Callable[[nn.Module], Tensor]
    pipeline: type
    presets: dict[str, tuple[str, ...]]


def flux() -> nn.Module:
    return _seeded(
        lambda: FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=NUM_BLOCKS,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            guidance_embeds=True,
            axes_dims_rope=(4, 6, 6),
        )
    )


def flux_forward(transformer: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    positions = torch.cartesian_prod(torch.arange(2.0), torch.arange(4.0), torch.arange(3.0))
    output: Tensor = transformer(
        hidden_states=torch.randn(2, 2 * NUM_TARGET_TOKENS, 16, generator=generator),
        encoder_hidden_states=torch.randn(2, 5, 32, generator=generator),
        pooled_projections=torch.randn(2, 32, generator=generator),
        timestep=torch.tensor([0.3, 0.8]),
        guidance=torch.tensor([1.0, 2.5]),
        img_ids=positions,
        txt_ids=torch.zeros(5, 3),
        return_dict=False,
    )[0]
    return output[:, :NUM_TARGET_TOKENS]


def qwen() -> nn.Module:
    return _seeded(
        lambda: QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=NUM_BLOCKS,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=24,
            axes_dims_rope=(4, 6, 6),
        )
    )


def qwen_forward(transformer: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    output: Tensor = transformer(
        hidden_states=torch.randn(2, 2 * NUM_TARGET_TOKENS, 16, generator=generator),
        encoder_hidden_states=torch.randn(2, 5, 24, generator=generator),
        encoder_hidden_states_mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool),
        timestep=torch.tensor([0.3, 0.8]),
        img_shapes=[[(1, 4, 3), (1, 4, 3)]] * 2,
        return_dict=False,
    )[0]
    return output[:, :NUM_TARGET_TOKENS]


FLUX = Family("flux", flux, flux_forward, FluxKontextPipeline, dict(flux_pipeline.LORA_PRESETS))
QWEN = Family("qwen_image", qwen, qwen_forward, QwenImageEditPipeline, dict(qwen_presets.lora_presets(NUM_BLOCKS)))
FAMILIES = {family.name: family for family in (FLUX, QWEN)}


def fill(denoiser: nn.Module, seed: int = 2) -> dict[str, Tensor]:
    """Puts random values into the adapter, magnitudes near the base's, and returns them."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in adapter_state(denoiser).items():
        noise = 0.2 * torch.randn(value.shape, generator=generator)
        state[name] = value * (1 + noise) if "magnitude" in name else noise
    load_state(denoiser, state)
    return state


def load_stock(family: Family, folder: Path, **options: str) -> nn.Module:
    """Returns a fresh transformer into which the stock pipeline has loaded the adapter of ``folder``."""
    parts = dict.fromkeys(signature(family.pipeline).parameters) | {"transformer": family.build()}
    pipeline = family.pipeline(**parts)
    pipeline.load_lora_weights(str(folder), **options)
    transformer: nn.Module = pipeline.transformer
    return transformer.eval()


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()
