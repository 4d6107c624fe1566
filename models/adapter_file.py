"""LoRA files that the stock FLUX pipelines load: names, dtype and metadata."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

ADAPTER_FILE = "pytorch_lora_weights.safetensors"
_PREFIX = "transformer."


def write_flux_adapter(state: Mapping[str, Tensor], folder: Path, *, rank: int, alpha: float) -> None:
    """Writes ``state`` in float32 to ``folder/pytorch_lora_weights.safetensors``.

    Rank and alpha go into the file's metadata: without them a loader takes alpha to be the rank.

    Raises:
        ValueError: nothing to write, or a matrix whose rank is not ``rank``.
    """
    from diffusers import FluxKontextPipeline

    unfit = [name for name, value in state.items() if value.shape["lora_B" in name] != rank]
    if unfit or not state:
        raise ValueError(
            f"An adapter of rank {rank} was to be written, but {len(unfit)} of {len(state)} matrices have "
            f"another rank, such as {unfit[:3]}. Pass the full state and the rank it was made with."
        )
    modules = sorted({name.rpartition(".lora_")[0] for name in state})
    FluxKontextPipeline.save_lora_weights(
        folder,
        transformer_lora_layers={
            name: value.detach().to("cpu", torch.float32).contiguous() for name, value in state.items()
        },
        transformer_lora_adapter_metadata={"r": rank, "lora_alpha": alpha, "target_modules": modules},
    )
    _sort_header(folder / ADAPTER_FILE)


def read_flux_adapter(folder: Path) -> dict[str, Tensor]:
    """Reads the matrices of ``folder`` in float32 on the CPU, without the file's ``transformer.`` prefix.

    Raises:
        ValueError: no such file, or a name without that prefix.
    """
    file = folder / ADAPTER_FILE
    if not file.is_file():
        raise ValueError(f"No adapter at {file}. Give the folder that holds {ADAPTER_FILE}.")
    stored = load_file(file)
    foreign = [name for name in stored if not name.startswith(_PREFIX)]
    if foreign:
        raise ValueError(f"{file} is no adapter of a FLUX transformer: it holds {', '.join(foreign[:3])}.")
    return {name.removeprefix(_PREFIX): value.float() for name, value in stored.items()}


def _sort_header(file: Path) -> None:
    """Puts the header's keys in order: the writer leaves metadata in random order, and equal runs make equal files.

    Source: the safetensors format, an 8-byte little-endian header size, the JSON header, then the tensors.
    """
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    sorted_header = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    padding = -len(sorted_header) % 8
    new_size = (len(sorted_header) + padding).to_bytes(8, "little")
    file.write_bytes(new_size + sorted_header + b" " * padding + content[8 + size :])
