"""LoRA adapters on a denoiser: adding, reading, writing and switching them.

Names are peft's without the adapter's name: ``transformer_blocks.0.attn.to_q.lora_A.weight``.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from physedit.data_loaders.streams import stream_seed

ADAPTER_NAME = "default"
_PARAMETER_NAME = re.compile(rf"(?P<module>.+)\.(?P<matrix>lora_[AB])\.{ADAPTER_NAME}\.weight")


@dataclass(frozen=True, slots=True)
class LoraReport:
    """What an adapter consists of: the names of its matrices in order, and how many numbers they hold."""

    names: tuple[str, ...]
    num_parameters: int


def preset_targets(presets: Mapping[str, tuple[str, ...]], preset: str) -> tuple[str, ...]:
    """Returns the regular expressions of ``preset``.

    Raises:
        ValueError: the backbone has no such preset.
    """
    if preset not in presets:
        near = get_close_matches(preset, presets, n=1)
        raise ValueError(
            f"The LoRA preset '{preset}' was asked for; the backbone has {', '.join(presets)}."
            + (f" Did you mean '{near[0]}'?" if near else "")
        )
    return presets[preset]


def add_adapter(
    denoiser: nn.Module,
    *,
    rank: int,
    alpha: float,
    targets: tuple[str, ...],
    seed: int,
) -> LoraReport:
    """Adds float32 LoRA matrices to every linear layer whose full name matches one of ``targets``.

    The base is frozen, whatever its dtype. A is uniform in +-1/sqrt(in_features) from (seed, name) alone, so
    it depends neither on the global generator nor on the other layers; B is zero, so the adapter changes
    nothing yet.

    Args:
        denoiser: a bare diffusers model.
        rank: width of the matrices, at least 1.
        alpha: the adapter's output is scaled by ``alpha / rank``.
        targets: regular expressions, matched against the whole module name.
        seed: decides the A matrices.

    Raises:
        ValueError: rank below 1, a target that is no regular expression, or targets that match no linear layer.

    Source: Hu et al., LoRA (arXiv 2106.09685), section 4.1; the bound is peft's kaiming_uniform(a=sqrt(5)).
    """
    from peft import LoraConfig

    if rank < 1:
        raise ValueError(f"adapter.rank must be at least 1, found {rank}.")
    denoiser.requires_grad_(False)
    modules = _matching_linears(denoiser, targets)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=_exactly(modules),
        init_lora_weights=True,
    )
    # peft draws from the global generator; the caller's stream must not move.
    with torch.random.fork_rng(devices=_cuda_devices(denoiser)):
        denoiser.add_adapter(config, adapter_name=ADAPTER_NAME)  # type: ignore[operator]
    parameters = _adapter_parameters(denoiser)
    for name, parameter in parameters.items():
        parameter.data = _initial_value(name, parameter, seed).to(parameter.device)
        parameter.requires_grad_(True)
    return LoraReport(tuple(parameters), sum(parameter.numel() for parameter in parameters.values()))


def adapter_state(denoiser: nn.Module) -> dict[str, Tensor]:
    """Returns the adapter's matrices by name in a fixed order: detached views of the live parameters."""
    return {name: parameter.detach() for name, parameter in _adapter_parameters(denoiser).items()}


def load_state(denoiser: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copies ``state`` into the adapter in place.

    Raises:
        ValueError: names or shapes differ from the adapter's.
    """
    live = adapter_state(denoiser)
    missing, unexpected = sorted(live.keys() - state.keys()), sorted(state.keys() - live.keys())
    reshaped = [n for n in live.keys() & state.keys() if live[n].shape != state[n].shape]
    if missing or unexpected or reshaped:
        raise ValueError(
            f"The adapter state does not fit the model's adapter of {len(live)} matrices: missing "
            f"{_shortened(missing)}; unexpected {_shortened(unexpected)}; of another shape "
            f"{_shortened(sorted(reshaped))}. Rank and targets must be those the state was saved with."
        )
    for name, value in live.items():
        value.copy_(state[name])


@contextmanager
def without_adapter(denoiser: nn.Module) -> Iterator[None]:
    """Within the context the denoiser is exactly the base, bit for bit."""
    parameters = _adapter_parameters(denoiser)
    trainable = {name: parameter.requires_grad for name, parameter in parameters.items()}
    bare = unwrapped(denoiser)
    bare.disable_adapters()  # type: ignore[operator]
    try:
        yield
    finally:
        bare.enable_adapters()  # type: ignore[operator]
        for name, parameter in parameters.items():
            parameter.requires_grad_(trainable[name])


@contextmanager
def swapped(denoiser: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the context the adapter has the values ``state``; the live ones come back afterwards."""
    kept = {name: value.clone() for name, value in adapter_state(denoiser).items()}
    load_state(denoiser, state)
    try:
        yield
    finally:
        load_state(denoiser, kept)


def unwrapped(denoiser: nn.Module) -> nn.Module:
    """Returns the bare model inside DDP, DeepSpeed and compile wrappers."""
    while True:
        inner = getattr(denoiser, "module", None) or getattr(denoiser, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return denoiser
        denoiser = inner


def _adapter_parameters(denoiser: nn.Module) -> dict[str, nn.Parameter]:
    found = {}
    for name, parameter in unwrapped(denoiser).named_parameters():
        match = _PARAMETER_NAME.fullmatch(name)
        if match:
            found[f"{match['module']}.{match['matrix']}.weight"] = parameter
    if not found:
        raise ValueError("The denoiser has no adapter. Call add_adapter first.")
    return found


def _matching_linears(denoiser: nn.Module, targets: tuple[str, ...]) -> list[str]:
    linears = [name for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)]
    patterns = [_compiled(target) for target in targets]
    matching = [name for name in linears if any(pattern.fullmatch(name) for pattern in patterns)]
    if not matching:
        raise ValueError(
            f"The LoRA targets {list(targets)} match none of the {len(linears)} linear layers of "
            f"{type(denoiser).__name__}; their names are such as {_shortened(linears)}. A target is a "
            "regular expression over the whole name; see the presets of the backbone."
        )
    return matching


def _compiled(target: str) -> re.Pattern[str]:
    try:
        return re.compile(target)
    except re.error as error:
        raise ValueError(
            f"adapter.targets has {target!r}, which is no regular expression: {error}. A target is one over the whole "
            r"name of a layer, such as transformer_blocks\.\d+\.attn\.to_q."
        ) from error


def _exactly(modules: list[str]) -> str:
    """Returns the pattern that matches these names alone; peft would match a list by ending."""
    return "|".join(re.escape(name) for name in modules)


def _initial_value(name: str, parameter: Tensor, seed: int) -> Tensor:
    if name.endswith("lora_B.weight"):
        return torch.zeros(parameter.shape, dtype=torch.float32)
    generator = torch.Generator().manual_seed(stream_seed(seed, "adapter", name))
    bound = 1.0 / math.sqrt(parameter.shape[1])
    return torch.empty(parameter.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)


def _cuda_devices(denoiser: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in denoiser.parameters() if p.device.type == "cuda"}, key=str)


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") if names else "none"
