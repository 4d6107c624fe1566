"""LoRA files that the stock FLUX pipelines load: names, dtype and metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

ADAPTER_FILE = "pytorch_lora_weights.safetensors"
_PREFIX = "transformer."
_METADATA = "lora_adapter_metadata"
"""Where diffusers keeps peft's settings, as JSON; each name begins with the component's prefix."""
_OTHER_SCALES = ("rank_pattern", "alpha_pattern", "use_rslora", "use_dora")


class AdapterFileError(ValueError):
    """An adapter's file is missing, damaged or of another kind of model."""


@dataclass(frozen=True, slots=True)
class AdapterFormat:
    """What an adapter's file says beside its matrices: their rank, and alpha, by which they count alpha / rank."""

    rank: int
    alpha: float


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
        AdapterFileError: no such file, a damaged one, or a name without that prefix.
    """
    file = _adapter_file(folder)
    try:
        stored = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    foreign = [name for name in stored if not name.startswith(_PREFIX)]
    if foreign:
        raise AdapterFileError(
            f"{file} is no adapter of a FLUX transformer: it holds {', '.join(foreign[:3])}. Give the folder of an "
            "adapter that was trained on this backbone."
        )
    return {name.removeprefix(_PREFIX): value.float() for name, value in stored.items()}


def read_adapter_format(folder: Path) -> AdapterFormat | None:
    """Reads rank and alpha of the adapter in ``folder``, or None if its file does not tell them.

    Raises:
        AdapterFileError: no such file, a damaged one, or an adapter that one alpha and one rank do not describe.
    """
    file = _adapter_file(folder)
    try:
        with safe_open(file, "pt") as content:
            metadata = content.metadata() or {}
        described = json.loads(metadata.get(_METADATA, "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    if not isinstance(described, dict):
        raise AdapterFileError(f"{file} describes itself by a {type(described).__name__}. Copy or train it again.")
    settings = {name.removeprefix(_PREFIX): value for name, value in described.items() if name.startswith(_PREFIX)}
    if others := [name for name in _OTHER_SCALES if settings.get(name)]:
        raise AdapterFileError(
            f"{file} has {', '.join(others)}: its layers are not all scaled by one alpha / rank. Only adapters with "
            "one rank and one alpha can be used."
        )
    if not {"r", "lora_alpha"} <= settings.keys():
        return None
    try:
        return AdapterFormat(rank=int(settings["r"]), alpha=float(settings["lora_alpha"]))
    except (TypeError, ValueError) as error:
        raise AdapterFileError(
            f"{file} says rank {settings['r']!r} and alpha {settings['lora_alpha']!r}; both must be numbers. Copy or "
            "train it again."
        ) from error


def _adapter_file(folder: Path) -> Path:
    file = folder / ADAPTER_FILE
    if not file.is_file():
        raise AdapterFileError(f"No adapter at {file}. Give the folder that holds {ADAPTER_FILE}.")
    return file


def _damaged(file: Path, error: Exception) -> AdapterFileError:
    return AdapterFileError(
        f"The adapter {file} ({file.stat().st_size} bytes) cannot be read: {error}. It is damaged, perhaps by an "
        "interrupted copy; copy or train it again."
    )


def _sort_header(file: Path) -> None:
    """Puts the header's keys in order: the writer leaves metadata in random order, and equal runs make equal files.

    Only the header is rewritten, in its place: the tensors of a large adapter take gigabytes.

    Source: the safetensors format, an 8-byte little-endian header size, the JSON header padded with blanks, tensors.
    """
    with file.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        in_order = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(in_order) <= size  # no JSON of the same values is shorter
        stream.seek(8)
        stream.write(in_order.ljust(size))
