"""Both backbones at tiny size with every setting that trades memory, and one training pass through each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from physedit.data_loaders.sample import EditBatch
from physedit.models import random_tiny, random_tiny_qwen
from physedit.models.backbone import Conditioning
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings, adapter_state, add_adapter, load_state
from physedit.models.qwen_image_edit import QwenImageEdit

Editor = FluxKontext | QwenImageEdit


def flux(**options: Any) -> FluxKontext:
    settings = {"weights": "random_tiny", "dtype": "float32", "max_text_tokens": 24, "area_px": 64 * 64}
    return FluxKontext(**{**settings, **options})


def qwen(**options: Any) -> QwenImageEdit:
    settings = {"weights": "random_tiny", "dtype": "float32", "pipeline": "QwenImageEditPipeline", "area_px": 64 * 64}
    return QwenImageEdit(**{**settings, **options})


EDITORS: Mapping[str, Callable[..., Editor]] = {"flux_kontext": flux, "qwen_image_edit": qwen}


def picture(seed: int) -> Tensor:
    return torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def batch_of(*seeds: int, prompt: str = "Remove the ball.") -> EditBatch:
    """One pair a seed."""
    return EditBatch(
        sample_ids=tuple(map(str, seeds)),
        sources=tuple(picture(seed) for seed in seeds),
        targets=tuple(picture(seed + 100) for seed in seeds),
        instructions=(prompt,) * len(seeds),
    )


def velocity(backbone: Editor, conditioning: Conditioning) -> Tensor:
    noise = torch.randn(conditioning.target.shape, generator=torch.Generator().manual_seed(1))
    sigma = torch.full([len(noise)], 0.7)
    return backbone.velocity(backbone.denoiser, noise, sigma, conditioning)


def edit(backbone: Editor, source: Tensor, guidance: float = 2.5) -> Tensor:
    return backbone.edit(
        backbone.denoiser,
        [(source,)],
        ["Remove the ball."],
        num_steps=2,
        guidance=guidance,
        generators=[torch.Generator().manual_seed(7)],
    )


def with_adapter(
    backbone: Editor, *, is_filled: bool, preset: str = "attention_mlp", compute_dtype: torch.dtype = torch.float32
) -> Editor:
    """Adds an adapter, which changes the output if it is filled, and returns the backbone."""
    settings = LoraSettings(4, 8.0, compute_dtype=compute_dtype)
    add_adapter(backbone.denoiser, settings, targets=backbone.lora_presets[preset], seed=0)
    if is_filled:
        generator = torch.Generator().manual_seed(2)
        state = adapter_state(backbone.denoiser)
        filled = {name: 0.1 * torch.randn(value.shape, generator=generator) for name, value in state.items()}
        load_state(backbone.denoiser, filled)
    return backbone


def gradients(backbone: Editor, conditioning: Conditioning) -> dict[str, Tensor]:
    """Returns the gradients of one training pass, by name."""
    backbone.denoiser.train().zero_grad()
    velocity(backbone, conditioning).square().mean().backward()
    return {n: p.grad.clone() for n, p in backbone.denoiser.named_parameters() if p.grad is not None}


def write_wide(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes a pipeline whose linear layers take multiples of 64 numbers, as those of the released models do."""
    for module in (random_tiny, random_tiny_qwen):
        for size, value in (("_LATENT_CHANNELS", 16), ("_TEXT_WIDTH", 64), ("_NUM_HEADS", 4)):
            monkeypatch.setattr(module, size, value)
    for statistics in ("_LATENT_MEAN", "_LATENT_STD"):
        monkeypatch.setattr(random_tiny_qwen, statistics, 4 * getattr(random_tiny_qwen, statistics))
    EDITORS[name]()._pipeline.save_pretrained(folder)
    monkeypatch.undo()


def relative_change(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / first.norm())
