"""Builds the parts of a run from its config: processes, data, hooks, adapter."""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs
from omegaconf import DictConfig

from physedit.eval_hooks.hook import EvalHook
from physedit.models.adapter_file import AdapterFormat
from physedit.models.backbone import Backbone
from physedit.models.lora import LoraSettings, add_adapter, preset_targets
from physedit.models.quantization import check_compiling, check_quantization, check_sharding
from physedit.train.build import build, resolve_target
from physedit.train.config import ConfigError

logger = logging.getLogger(__name__)


COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""How long ranks wait for each other: a judge may take one rank's share much longer than another's."""


def start_processes(config: DictConfig) -> Accelerator:
    """Joins the processes of the launch.

    Raises:
        ConfigError: a launch that this trainer does not run under.
    """
    if config.num_threads is not None:
        torch.set_num_threads(int(config.num_threads))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda was asked, but torch sees no CUDA device. Use device=auto or device=cpu.")
    on_cpu = config.device == "cpu" or not torch.cuda.is_available()
    waits = InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no", kwargs_handlers=[waits])
    _check_sharding(config, accelerator)
    if accelerator.distributed_type not in (
        DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU,
    ):  # fmt: skip
        raise ConfigError(
            f"This launch is of type {accelerator.distributed_type.value}. physedit trains with one process or "
            f"with DDP: launch with launch/accelerate/ddp.yaml."
        )
    return accelerator


def _check_sharding(config: DictConfig, accelerator: Accelerator) -> None:
    plugin = accelerator.state.deepspeed_plugin
    try:
        check_sharding(config.backbone.get("quantization"), 0 if plugin is None else int(plugin.zero_stage))
    except ValueError as error:
        raise ConfigError(str(error)) from error


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
    """Builds a component.

    Raises:
        ConfigError: its class refuses an argument; the message starts with ``key``.
    """
    try:
        return build(node)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise ConfigError(f"{key}: {error}") from error


def check_backbone(config: DictConfig) -> None:
    """Verifies that the backbone's weights can be opened, and quantised here if they are to be, without loading them.

    Raises:
        ConfigError: they cannot.
    """
    backbone = cast("type[Backbone]", resolve_target(str(config.backbone["_target_"])))
    try:
        backbone.check_weights(str(config.backbone.weights))
        quantization = config.backbone.get("quantization")
        check_compiling(quantization, config.backbone.get("compile_blocks"))
        check_quantization(quantization, str(config.backbone.weights))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def build_hooks(config: DictConfig) -> list[EvalHook]:
    """Builds the hooks of the config in the order of their names."""
    return [build_checked(f"eval.{name}", config.eval[name]) for name in sorted(config.eval)]


def add_lora(backbone: Backbone, config: DictConfig) -> AdapterFormat:
    """Adds the adapter of the config to the denoiser.

    Raises:
        ConfigError: targets that match no layer.
    """
    wanted = config.adapter
    settings = LoraSettings(
        rank=int(wanted.rank),
        alpha=float(wanted.rank if wanted.alpha is None else wanted.alpha),
        dropout=float(wanted.dropout),
        use_dora=bool(wanted.use_dora),
        use_rslora=bool(wanted.use_rslora),
    )
    try:
        presets, preset = backbone.lora_presets, wanted.preset
        targets = tuple(wanted.targets) if preset is None else preset_targets(presets, str(preset))
        report = add_adapter(backbone.denoiser, settings, targets=targets, seed=int(config.seed))
    except ValueError as error:
        raise ConfigError(f"adapter: {error}") from error
    logger.info("Adapter: %d layers, %.2f M parameters.", report.num_layers, report.num_parameters / 1e6)
    return settings.format
