"""Adapters of tiny editors that change what they draw, on disk."""

from pathlib import Path

import torch

from physedit.models.backbone import Backbone
from physedit.models.lora import LoraSettings, adapter_state, add_adapter

FILE = "pytorch_lora_weights.safetensors"


def write_adapter_of(
    editor: Backbone, folder: Path, settings: LoraSettings, *, targets: tuple[str, ...] | None = None, size: float = 0.3
) -> Path:
    """Adds a random adapter to the bare ``editor``, writes it and returns its file; size 0 changes nothing."""
    covered = editor.lora_presets["attention_mlp"] if targets is None else targets
    add_adapter(editor.denoiser, settings, targets=covered, seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, value in adapter_state(editor.denoiser).items():
        if name.endswith("lora_B.weight"):
            value.copy_(size * torch.randn(value.shape, generator=generator))
        elif name.endswith("lora_magnitude_vector"):
            value.mul_(1 + size * torch.rand(value.shape, generator=generator))
    editor.save_adapter(adapter_state(editor.denoiser), str(folder), settings.format)
    return folder / FILE


def as_if_of_a_run(adapter: Path, run: Path, *overrides: str) -> Path:
    """Puts a copy of an adapter's file into the checkpoint of a run with these overrides; returns the checkpoint."""
    checkpoint = run / "checkpoints" / "step_00000008"
    (checkpoint / "adapter").mkdir(parents=True)
    (checkpoint / "adapter" / FILE).write_bytes(adapter.read_bytes())
    (run / "overrides.txt").write_text("".join(f"{each}\n" for each in overrides))
    return checkpoint
