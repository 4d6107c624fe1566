"""A denoiser of as few blocks as tell what all of them take: of a row of equal ones two, a middle, the last.

Where every n-th block is recomputed, n blocks together are what repeats.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import nn

from physedit.models.blocks import BLOCK_LISTS, recompute
from physedit.models.lora import ADAPTER_NAME, LoraSettings
from physedit.models.lora_products import compute_in
from physedit.models.lora_targets import matching_layers

_LENGTHS: Mapping[str, str] = {"transformer_blocks": "num_layers", "single_transformer_blocks": "num_single_layers"}
"""What the denoisers' config calls the lengths of their lists of blocks."""
_TRACED = 4
"""Of a row of equal groups of blocks: the first two, one for all between, the last. While the second runs, what came
into the first is let go of, which happens once."""


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that run one after the other, and how many such groups of the whole denoiser they stand for."""

    blocks: tuple[nn.Module, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Shallow:
    """A denoiser on the meta device with its adapter, and its blocks in the order they run."""

    denoiser: nn.Module
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Numbers of blocks within their list, and how many such groups they stand for."""

    numbers: tuple[int, ...]
    count: int


def shallow(
    denoiser: nn.Module, targets: Sequence[str], settings: LoraSettings, dtype: torch.dtype, *, every: int
) -> Shallow:
    """Builds the denoiser, whose blocks are recomputed as those are that they stand for.

    Args:
        denoiser: the whole one.
        targets: of the adapter.
        settings: of the adapter.
        dtype: of the base.
        every: the first of every so many blocks is recomputed; 0 for none.

    Raises:
        ValueError: a target that matches no linear layer.
    """
    config = dict(denoiser.config)  # type: ignore[arg-type]
    # diffusers takes no value of those that it notes as defaults.
    config.pop("_use_default_values", None)
    adapted = matching_layers(denoiser, targets)
    wanted = [name for name in adapted if not name.startswith(tuple(f"{each}." for each in BLOCK_LISTS))]
    chosen: dict[str, list[_Chosen]] = {}
    recomputed: list[bool] = []
    num_before = 0
    for name in BLOCK_LISTS:
        length = len(getattr(denoiser, name, ()))
        if not length:
            continue
        chosen[name] = _representatives([_layers_of(adapted, name, n) for n in range(length)], max(every, 1))
        numbers = [number for group in chosen[name] for number in group.numbers]
        config[_LENGTHS[name]] = len(numbers)
        wanted += [f"{name}.{n}.{layer}" for n, old in enumerate(numbers) for layer in _layers_of(adapted, name, old)]
        recomputed += [every > 0 and (num_before + number) % every == 0 for number in numbers]
        num_before += length
    built = _built(type(denoiser), config, wanted, settings, dtype)
    groups = tuple(_grouped(built, chosen))
    blocks = [block for group in groups for block in group.blocks]
    if every:
        recompute(built, [block for block, again in zip(blocks, recomputed, strict=True) if again])
    return Shallow(built, groups)


def _built(
    kind: type[nn.Module], config: Mapping[str, Any], adapted: Sequence[str], settings: LoraSettings, dtype: torch.dtype
) -> nn.Module:
    from peft import LoraConfig

    with torch.device("meta"):
        built: Any = kind.from_config(config)  # type: ignore[attr-defined]
        nn.Module.to(built, dtype)
        built.requires_grad_(False)
        lora = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=settings.dropout,
            use_dora=settings.use_dora,
            use_rslora=settings.use_rslora,
            target_modules="|".join(map(re.escape, adapted)),
        )
        built.add_adapter(lora, adapter_name=ADAPTER_NAME)
    for name, parameter in built.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    if settings.compute_dtype != torch.float32:
        compute_in(built, settings.compute_dtype, adapter_name=ADAPTER_NAME)
    trained: nn.Module = built.train()
    return trained


def _grouped(built: nn.Module, chosen: Mapping[str, Sequence[_Chosen]]) -> Iterator[Group]:
    for name, groups in chosen.items():
        blocks = iter(getattr(built, name))
        for group in groups:
            yield Group(tuple(next(blocks) for _ in group.numbers), group.count)


def _layers_of(adapted: Sequence[str], blocks: str, number: int) -> tuple[str, ...]:
    """Returns the names of the adapted layers of one block, within it."""
    head = f"{blocks}.{number}."
    return tuple(name.removeprefix(head) for name in adapted if name.startswith(head))


def _representatives(signatures: Sequence[tuple[str, ...]], size: int) -> list[_Chosen]:
    """Returns groups of ``size`` blocks to trace: of a row of equal blocks the first two, a middle, the last.

    What is left over behind the last whole group is traced block by block.
    """
    chosen: list[_Chosen] = []
    for _, equal in groupby(range(len(signatures)), key=signatures.__getitem__):
        row = list(equal)
        num_groups = len(row) // size
        groups = [_Chosen(tuple(row[size * n : size * (n + 1)]), 1) for n in range(num_groups)]
        if num_groups > _TRACED:
            groups = [groups[0], groups[1], _Chosen(groups[2].numbers, num_groups - 3), groups[-1]]
        chosen += groups + [_Chosen((number,), 1) for number in row[size * num_groups :]]
    return chosen
