"""LoRA adapters on a denoiser: adding, reading, writing and switching them.

Names are those of peft's files, without the adapter's name: ``transformer_blocks.0.attn.to_q.lora_A.weight``,
``.lora_B.weight``, and with DoRA ``.lora_magnitude_vector``.
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
from physedit.models.adapter_file import AdapterFormat
from physedit.models.lora_products import compute_in
from physedit.models.lora_targets import matching_layers, shortened

ADAPTER_NAME = "default"
_PARAMETER_NAME = re.compile(rf"(?P<layer>.+)\.(?P<part>lora_A|lora_B|lora_magnitude_vector)\.{ADAPTER_NAME}\.weight")
_MAGNITUDE = "lora_magnitude_vector"


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """What an adapter is made of, apart from its layers.

    Attributes:
        rank: width of the matrices, at least 1.
        alpha: strength; the adapter's output is scaled by ``alpha / rank``.
        dropout: share of each adapted layer's inputs that the adapter does not see in training, 0 to below 1.
        use_dora: the adapter also learns the length of every row of the layer's weight (DoRA). Every step then
            computes the whole adapted weight, which costs time and memory.
        use_rslora: scale by ``alpha / sqrt(rank)`` instead (rsLoRA).
        compute_dtype: what inputs and weights are brought to for the adapter's products. Its weights, their gradients
            and updates are float32 whatever it is.

    Source: DoRA arXiv 2402.09353; rsLoRA arXiv 2312.03732.
    """

    rank: int
    alpha: float
    dropout: float = 0.0
    use_dora: bool = False
    use_rslora: bool = False
    compute_dtype: torch.dtype = torch.float32

    @property
    def format(self) -> AdapterFormat:
        """What the adapter's file says of these settings: neither dropout nor the dtype of its products."""
        return AdapterFormat(self.rank, self.alpha, use_dora=self.use_dora, use_rslora=self.use_rslora)


@dataclass(frozen=True, slots=True)
class LoraReport:
    """What an adapter consists of: its tensors' names in order, how many layers and how many numbers."""

    names: tuple[str, ...]
    num_layers: int
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


def add_adapter(denoiser: nn.Module, settings: LoraSettings, *, targets: tuple[str, ...], seed: int) -> LoraReport:
    """Adds a float32 adapter to every linear layer whose full name matches one of ``targets``.

    The base is frozen, whatever its dtype. A is uniform in +-1/sqrt(in_features) from (seed, name) alone, so
    it depends neither on the global generator nor on the other layers; B is zero and DoRA's magnitudes are the
    base's own float32 row lengths, so the adapter changes nothing yet, bit for bit.

    Args:
        denoiser: a bare diffusers model.
        settings: rank, alpha and variant.
        targets: regular expressions, matched against the whole module name.
        seed: decides the A matrices.

    Raises:
        ValueError: settings that ``check_settings`` refuses, or a target that matches no linear layer.

    Source: Hu et al., LoRA (arXiv 2106.09685), section 4.1; the bound is peft's kaiming_uniform(a=sqrt(5)).
    """
    from peft import LoraConfig

    check_settings(settings)
    denoiser.requires_grad_(False)
    layers = matching_layers(denoiser, targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        use_dora=settings.use_dora,
        use_rslora=settings.use_rslora,
        target_modules=_exactly(layers),
        init_lora_weights=True,
    )
    # peft draws from the global generator; the caller's stream must not move.
    with torch.random.fork_rng(devices=_cuda_devices(denoiser)):
        denoiser.add_adapter(config, adapter_name=ADAPTER_NAME)  # type: ignore[operator]
    if settings.compute_dtype != torch.float32:
        compute_in(denoiser, settings.compute_dtype, adapter_name=ADAPTER_NAME)
    # New modules are in train mode, whatever the model is in: dropout would act in an evaluation.
    denoiser.train(denoiser.training)
    parameters = _adapter_parameters(denoiser)
    for name, parameter in parameters.items():
        parameter.data = _initial_value(name, denoiser, parameter, seed).to(parameter.device)
        parameter.requires_grad_(True)
    return LoraReport(tuple(parameters), len(layers), sum(parameter.numel() for parameter in parameters.values()))


def check_settings(settings: LoraSettings) -> None:
    """Verifies settings, apart from any model.

    Raises:
        ValueError: a rank or dropout out of range, or DoRA with products that are not float32.
    """
    if settings.rank < 1:
        raise ValueError(f"adapter.rank must be at least 1, found {settings.rank}.")
    if not 0 <= settings.dropout < 1:
        raise ValueError(
            f"adapter.dropout must be at least 0 and below 1, found {settings.dropout}: at 1 the adapter sees nothing."
        )
    if settings.use_dora and settings.compute_dtype != torch.float32:
        raise ValueError(
            f"adapter.compute_dtype={str(settings.compute_dtype).removeprefix('torch.')} does not go with "
            "adapter.use_dora=true, which divides by the lengths of the adapted weights' rows: they must be float32 "
            "if a new adapter is to be the base. Use adapter.compute_dtype=float32, or adapter.use_dora=false."
        )


def adapter_state(denoiser: nn.Module) -> dict[str, Tensor]:
    """Returns the adapter's tensors by name in a fixed order: detached views of the live parameters."""
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
            f"The adapter state does not fit the model's adapter of {len(live)} tensors: missing "
            f"{shortened(missing)}; unexpected {shortened(unexpected)}; of another shape "
            f"{shortened(sorted(reshaped))}. Rank, targets and use_dora must be those the state was saved with."
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
            suffix = "" if match["part"] == _MAGNITUDE else ".weight"
            found[f"{match['layer']}.{match['part']}{suffix}"] = parameter
    if not found:
        raise ValueError("The denoiser has no adapter. Call add_adapter first.")
    return found


def _exactly(layers: list[str]) -> str:
    """Returns the pattern that matches these names alone; peft would match a list by ending."""
    return "|".join(re.escape(name) for name in layers)


def _initial_value(name: str, denoiser: nn.Module, parameter: Tensor, seed: int) -> Tensor:
    if name.endswith(_MAGNITUDE):
        return _row_lengths(denoiser.get_submodule(name.removesuffix(f".{_MAGNITUDE}")))
    if name.endswith("lora_B.weight"):
        return torch.zeros(parameter.shape, dtype=torch.float32)
    generator = torch.Generator().manual_seed(stream_seed(seed, "adapter", name))
    bound = 1.0 / math.sqrt(parameter.shape[1])
    return torch.empty(parameter.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)


def _row_lengths(layer: nn.Module) -> Tensor:
    """Returns float32 lengths ``[out]``; peft's own are rounded to the base's dtype."""
    from peft.utils.integrations import dequantize_module_weight

    weight: Tensor = dequantize_module_weight(layer.base_layer)
    lengths: Tensor = torch.linalg.norm(weight.float(), dim=1)
    return lengths


def _cuda_devices(denoiser: nn.Module) -> list[torch.device]:
    return sorted({p.device for p in denoiser.parameters() if p.device.type == "cuda"}, key=str)
