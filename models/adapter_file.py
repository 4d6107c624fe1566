"""LoRA files that the stock diffusers pipelines load: names, dtype and metadata."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

ADAPTER_FILE = "pytorch_lora_weights.safetensors"
_PREFIX = "transformer."
_METADATA = "lora_adapter_metadata"
"""Where diffusers keeps peft's settings, as JSON; each name begins with the component's prefix."""
_VARIANTS = ("use_dora", "use_rslora")
_UNEVEN = ("rank_pattern", "alpha_pattern")


class AdapterFileError(ValueError):
    """An adapter's file is missing, damaged or of another kind of model."""


@dataclass(frozen=True, slots=True)
class AdapterFormat:
    """What an adapter's file says beside its tensors: how to count with them.

    Attributes:
        rank: width of the matrices.
        alpha: strength.
        use_dora: there is a magnitude for every row of each adapted weight.
        use_rslora: the scale is ``alpha / sqrt(rank)``, not ``alpha / rank``.
    """

    rank: int
    alpha: float
    use_dora: bool = False
    use_rslora: bool = False

    @property
    def scale(self) -> float:
        """The factor of ``B A``."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


def write_adapter(
    pipeline: type[Any], state: Mapping[str, Tensor], folder: Path, adapter_format: AdapterFormat
) -> None:
    """Writes ``state`` in float32 to ``folder/pytorch_lora_weights.safetensors``.

    The format goes into the file's metadata, from which a stock pipeline takes it: without metadata a loader takes
    alpha to be the rank.

    Args:
        pipeline: the class of the stock diffusers pipeline that shall load the file.
        state: tensors by the names of ``lora.adapter_state``.
        folder: where the file is written.
        adapter_format: rank, alpha and variant of ``state``.

    Raises:
        ValueError: nothing to write, tensors without elements, or tensors that are not of that format.
    """
    check_fit(state, adapter_format)
    layers = sorted({name.rpartition(".lora_")[0] for name in state})
    pipeline.save_lora_weights(
        folder,
        transformer_lora_layers={
            name: value.detach().to("cpu", torch.float32).contiguous() for name, value in state.items()
        },
        transformer_lora_adapter_metadata={
            "r": adapter_format.rank,
            "lora_alpha": adapter_format.alpha,
            "use_dora": adapter_format.use_dora,
            "use_rslora": adapter_format.use_rslora,
            "target_modules": layers,
        },
    )
    _sort_header(folder / ADAPTER_FILE)


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Reads the tensors of ``folder`` in float32 on the CPU, without the file's ``transformer.`` prefix.

    Raises:
        AdapterFileError: no such file, a damaged one, a name without that prefix, or tensors of whole numbers.
    """
    file = _adapter_file(folder)
    try:
        stored = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    foreign = [name for name in stored if not name.startswith(_PREFIX)]
    if foreign:
        raise AdapterFileError(
            f"{file} is no adapter of a diffusers transformer: it holds {', '.join(foreign[:3])}. Give the folder of "
            "an adapter that was trained on this backbone."
        )
    if counted := [name for name, value in stored.items() if not value.is_floating_point()]:
        raise AdapterFileError(f"{file} holds whole numbers, in {', '.join(counted[:3])}. Copy or train it again.")
    return {name.removeprefix(_PREFIX): value.float() for name, value in stored.items()}


def read_adapter_format(folder: Path) -> AdapterFormat | None:
    """Reads the format of the adapter in ``folder``, or None if its file does not tell rank and alpha.

    Raises:
        AdapterFileError: no such file, a damaged one, or an adapter that no one format describes.
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
    if uneven := [name for name in _UNEVEN if settings.get(name)]:
        raise AdapterFileError(
            f"{file} has {', '.join(uneven)}: its layers are not all scaled by one alpha and one rank. Only adapters "
            "with one rank and one alpha can be used."
        )
    if not {"r", "lora_alpha"} <= settings.keys():
        return None
    rank, alpha = settings["r"], settings["lora_alpha"]
    is_rank = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1
    is_alpha = isinstance(alpha, int | float) and not isinstance(alpha, bool) and math.isfinite(alpha)
    variants = [settings.get(name, False) for name in _VARIANTS]
    if not (is_rank and is_alpha and all(isinstance(variant, bool) for variant in variants)):
        said = ", ".join(f"{name} {variant!r}" for name, variant in zip(_VARIANTS, variants, strict=True))
        raise AdapterFileError(
            f"{file} says rank {rank!r}, alpha {alpha!r}, {said}; rank must be a whole number above 0, alpha a finite "
            "number, and the others true or false. Copy or train it again."
        )
    return AdapterFormat(rank, float(alpha), *variants)


def check_fit(state: Mapping[str, Tensor], adapter_format: AdapterFormat) -> None:
    """Verifies that ``state`` holds something and all of it is of ``adapter_format``.

    Raises:
        ValueError: it is not.
    """
    empty = [name for name, value in state.items() if value.numel() == 0]
    if empty:
        raise ValueError(
            f"An adapter was to be used, but {len(empty)} of its {len(state)} tensors have no elements, such as "
            f"{empty[:3]}, as ZeRO-3 leaves a parameter on each rank. Gather them on all ranks before saving."
        )
    rank = adapter_format.rank
    matrices = {name: value for name, value in state.items() if value.ndim == 2}
    unfit = [name for name, value in matrices.items() if value.shape["lora_B" in name] != rank]
    if unfit or not matrices:
        raise ValueError(
            f"An adapter of rank {rank} was to be used, but {len(unfit)} of {len(matrices)} matrices have "
            f"another rank, such as {unfit[:3]}. Pass the full state and the rank it was made with."
        )
    halves = [{n.removesuffix(f".lora_{part}.weight") for n in matrices if f".lora_{part}." in n} for part in "AB"]
    if single := sorted(halves[0] ^ halves[1]):
        raise ValueError(
            f"An adapter was to be used, but only one of both matrices is there for {single[:3]}. Pass the full state."
        )
    num_magnitudes, num_layers = len(state) - len(matrices), len(halves[0])
    if num_magnitudes != (num_layers if adapter_format.use_dora else 0):
        raise ValueError(
            f"An adapter with use_dora={adapter_format.use_dora} was to be used, but its state has magnitudes for "
            f"{num_magnitudes} of {num_layers} layers. Pass the full state and the settings it was made with."
        )


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
