"""The modules of an editor on the meta device: the classes and sizes that its weights have, without any weight.

A released editor that is not on this machine is built from the settings it was released with.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from physedit.models.estimating.released import released_flux, released_qwen
from physedit.models.flux_pipeline import LORA_PRESETS
from physedit.models.outline import local_files
from physedit.models.pipeline_folder import INDEX
from physedit.models.qwen_pipeline import checked_pipeline, found_weights
from physedit.models.qwen_presets import lora_presets
from physedit.models.weights import RANDOM_TINY, find_weights

DENOISER, VAE = "transformer", "vae"


@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """An editor without weights; equal only to itself.

    Attributes:
        family: ``flux`` or ``qwen``, which decides what a step passes to the denoiser.
        denoiser: the transformer, whole, in float32.
        vae: of the pipeline.
        text_encoders: by their names in the pipeline.
        presets: LoRA presets of the denoiser.
    """

    family: str
    denoiser: nn.Module
    vae: nn.Module
    text_encoders: Mapping[str, nn.Module]
    presets: Mapping[str, tuple[str, ...]]

    @property
    def vae_factor(self) -> int:
        """Pixels a side of a latent cell."""
        config: Any = self.vae.config
        return int(
            2 ** (len(config.block_out_channels) - 1 if self.family == "flux" else len(config.temperal_downsample))
        )

    @property
    def latent_channels(self) -> int:
        """Channels of a latent cell; the denoiser takes four cells as a token."""
        config: Any = self.denoiser.config
        return int(config.in_channels) // 4


def flux_architecture(weights: str) -> Architecture:
    """Returns that of a FLUX.1-Kontext; see ``FluxKontext`` for ``weights``.

    Raises:
        ValueError: no such weights, or configs that cannot be read.
    """
    found = weights if weights == RANDOM_TINY else find_weights(weights, "flux_kontext")
    parts = _parts(weights, found, _random_flux, released_flux)
    text_encoders = {name: part for name, part in parts.items() if name not in (DENOISER, VAE)}
    return Architecture("flux", parts[DENOISER], parts[VAE], text_encoders, LORA_PRESETS)


def qwen_architecture(weights: str, pipeline: str) -> Architecture:
    """Returns that of a Qwen-Image-Edit; see ``QwenImageEdit`` for both arguments.

    Raises:
        ValueError: no such weights or pipeline, or configs that cannot be read.
    """
    kind = checked_pipeline(pipeline)
    parts = _parts(weights, found_weights(weights, kind), lambda: _random_qwen(pipeline), released_qwen)
    text_encoders = {name: part for name, part in parts.items() if name not in (DENOISER, VAE)}
    presets = lora_presets(int(parts[DENOISER].config.num_layers))  # type: ignore[arg-type, union-attr]
    return Architecture("qwen", parts[DENOISER], parts[VAE], text_encoders, presets)


def num_bytes(module: nn.Module, dtype: torch.dtype, linear_bits: float | None = None) -> int:
    """Returns the bytes of a module's parameters and buffers.

    Args:
        module: any.
        dtype: of its floating point tensors.
        linear_bits: of a weight of a linear layer, where those are quantised; None leaves them in ``dtype``.
    """
    tensors = [*module.parameters(), *module.buffers()]
    whole = sum(each.numel() * (dtype.itemsize if each.is_floating_point() else each.itemsize) for each in tensors)
    if linear_bits is None:
        return whole
    num_linear = sum(each.weight.numel() for each in module.modules() if isinstance(each, nn.Linear))
    return whole + round(num_linear * (linear_bits / 8 - dtype.itemsize))


def _parts(
    weights: str, found: Path | str, random: Callable[[], Any], released: Callable[[], dict[str, nn.Module]]
) -> dict[str, nn.Module]:
    if weights == RANDOM_TINY:
        pipeline = random()
        modules = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
        return {name: part.to("meta") for name, part in modules.items()}
    folder = local_files(found, DENOISER, VAE)
    return released() if folder is None else _read_parts(folder)


def _read_parts(folder: Path) -> dict[str, nn.Module]:
    """Builds every part of a pipeline's folder from its config.

    Raises:
        ValueError: a config that cannot be read.
    """
    import diffusers
    import transformers

    libraries = {"diffusers": diffusers, "transformers": transformers}
    parts: dict[str, nn.Module] = {}
    for name, kind in json.loads((folder / INDEX).read_text(encoding="utf-8")).items():
        file = folder / name / "config.json"
        if not isinstance(kind, list) or kind[0] not in libraries or not file.is_file():
            continue
        part: Any = getattr(libraries[kind[0]], kind[1])
        try:
            with torch.device("meta"):
                if kind[0] == "diffusers":
                    parts[name] = part.from_config(part.load_config(folder / name))
                else:
                    parts[name] = part._from_config(part.config_class.from_pretrained(folder / name))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is no config of {kind[1]}: {type(error).__name__}: {error}. Download it again."
            ) from error
    return parts


def _random_flux() -> Any:
    from physedit.models.random_tiny import build_random_tiny

    return build_random_tiny(0)


def _random_qwen(pipeline: str) -> Any:
    import diffusers

    from physedit.models.random_tiny_qwen import build_random_tiny_qwen

    return build_random_tiny_qwen(getattr(diffusers, pipeline), 0, zero_cond_t=pipeline.endswith("PlusPipeline"))
