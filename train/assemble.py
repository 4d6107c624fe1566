"""Builds the parts of a run from its config: processes, data, hooks, adapter."""

import logging
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from omegaconf import DictConfig

from physedit.eval_hooks.hook import EvalHook
from physedit.models.backbone import Backbone
from physedit.models.lora import add_adapter
from physedit.train.build import build, resolve_target
from physedit.train.checkpoint import AdapterFormat
from physedit.train.config import ConfigError, suggestion

logger = logging.getLogger(__name__)


def start_processes(config: DictConfig) -> Accelerator:
    """Joins the processes of the launch.

    Raises:
        ConfigError: a launch that this trainer does not run under.
    """
    if config.num_threads is not None:
        torch.set_num_threads(int(config.num_threads))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda was asked, but torch sees no CUDA device. Use device=auto or device=cpu.")
    accelerator = Accelerator(cpu=config.device == "cpu", mixed_precision="no")
    if accelerator.distributed_type not in (
        DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU,
    ):  # fmt: skip
        raise ConfigError(
            f"This launch is of type {accelerator.distributed_type.value}. physedit trains with one process or "
            f"with DDP: launch with launch/accelerate/ddp.yaml."
        )
    return accelerator


def scenes_are_missing(config: DictConfig) -> bool:
    """True if the config asks for an embedded world that is not on disk yet."""
    return bool(config.scenes.write) and not Path(str(config.scenes.folder)).exists()


def write_scenes(config: DictConfig) -> None:
    """Writes the embedded world that the config asks for, unless its folder is there.

    Raises:
        ConfigError: the folder holds a world with other settings.
    """
    if not config.scenes.write:
        return
    from physedit.data_loaders.scenes.write import ensure_world

    asked = config.scenes
    try:
        ensure_world(
            Path(str(asked.folder)),
            num_train=asked.num_train,
            num_benchmark=asked.num_benchmark,
            seed=asked.seed,
        )
    except ValueError as error:
        raise ConfigError(f"scenes: {error}") from error


def build_checked(key: str, node: DictConfig) -> Any:
    """Builds a component; an argument its class refuses becomes a ``ConfigError`` that starts with ``key``."""
    try:
        return build(node)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise ConfigError(f"{key}: {error}") from error


def check_backbone(config: DictConfig) -> None:
    """Verifies that the backbone's weights can be opened, without loading them.

    Raises:
        ConfigError: they cannot.
    """
    backbone = cast("type[Backbone]", resolve_target(str(config.backbone["_target_"])))
    try:
        backbone.check_weights(str(config.backbone.weights))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def build_hooks(config: DictConfig) -> list[EvalHook]:
    """Builds the hooks of the config in the order of their names."""
    return [build_checked(f"eval.{name}", config.eval[name]) for name in sorted(config.eval)]


def add_lora(backbone: Backbone, config: DictConfig) -> AdapterFormat:
    """Adds the adapter of the config to the denoiser.

    Raises:
        ConfigError: an unknown preset, or targets that match no layer.
    """
    wanted = config.adapter
    if wanted.preset is not None and wanted.preset not in backbone.lora_presets:
        raise ConfigError(
            f"adapter.preset={wanted.preset} is not known.{suggestion(wanted.preset, backbone.lora_presets)} "
            f"Presets: {', '.join(sorted(backbone.lora_presets))}."
        )
    targets = backbone.lora_presets[wanted.preset] if wanted.preset is not None else tuple(wanted.targets)
    alpha = float(wanted.rank if wanted.alpha is None else wanted.alpha)
    try:
        report = add_adapter(
            backbone.denoiser, rank=int(wanted.rank), alpha=alpha, targets=targets, seed=int(config.seed)
        )
    except ValueError as error:
        raise ConfigError(f"adapter: {error}") from error
    logger.info("Adapter: %d layers, %.2f M parameters.", len(report.names), report.num_parameters / 1e6)
    return AdapterFormat(int(wanted.rank), alpha)
