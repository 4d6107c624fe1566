"""Builds the parts of a run from its config: processes, data, hooks, adapter."""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs
from omegaconf import DictConfig, OmegaConf
from torch import nn

from physedit.data_loaders.loader import Share
from physedit.eval_hooks.hook import EvalHook
from physedit.models.adapter_file import AdapterFormat
from physedit.models.backbone import Backbone
from physedit.models.lora import add_adapter, preset_targets
from physedit.models.outline import Outline
from physedit.models.quantization import check_compiling, check_quantization, check_sharding
from physedit.models.random_released import check_random
from physedit.train import zero
from physedit.train.adapter_settings import lora_settings
from physedit.train.build import build, resolve_target
from physedit.train.config import ConfigError
from physedit.train.engine import Arithmetic, Engine, PlainEngine
from physedit.train.optim import build_optimizer
from physedit.train.processes import end_with_launcher
from physedit.train.state import trainable
from physedit.train.zero_engine import ZeroEngine

logger = logging.getLogger(__name__)


def start_processes(config: DictConfig) -> Accelerator:
    """Joins the processes of the launch.

    Raises:
        ConfigError: a launch that this trainer does not run under.
    """
    if config.num_threads is not None:
        torch.set_num_threads(int(config.num_threads))
    torch.set_float32_matmul_precision(config.float32_matmul_precision)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda was asked, but torch sees no CUDA device. Use device=auto or device=cpu.")
    end_with_launcher()
    on_cpu = config.device == "cpu" or not torch.cuda.is_available()
    with_zero = zero.asked_for()
    if with_zero:
        zero.prepare_environment(on_cpu=on_cpu)
    # Where DeepSpeed runs, accelerate would take nccl on the CPU too.
    waits = InitProcessGroupKwargs(
        backend="gloo" if on_cpu and with_zero else "nccl", timeout=timedelta(seconds=int(config.collective_timeout_s))
    )
    accelerator = Accelerator(cpu=on_cpu and not with_zero, mixed_precision="no", kwargs_handlers=[waits])
    if with_zero:
        zero.forget_transformers_config()
    try:
        check_sharding(config.backbone.get("quantization"), zero.stage_of(accelerator))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _check_launch(accelerator, with_zero=with_zero)
    return accelerator


def _check_launch(accelerator: Accelerator, *, with_zero: bool) -> None:
    found = accelerator.distributed_type
    if with_zero and found != DistributedType.DEEPSPEED:
        raise ConfigError(f"The launch asks for DeepSpeed, but accelerate runs {found.value}. Check its config file.")
    if found not in (
        DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU, DistributedType.DEEPSPEED,
    ):  # fmt: skip
        raise ConfigError(
            f"This launch is of type {found.value}. physedit trains with one process, with DDP or with DeepSpeed: "
            f"launch with a file of launch/accelerate."
        )


def cut_denoiser(config: DictConfig, accelerator: Accelerator, denoiser: nn.Module, share: Share) -> None:
    """Under ZeRO-3 cuts the denoiser over the ranks, else does nothing; all ranks call it.

    It is called once the adapter is in place and before anything is moved to the device: there the denoiser is never
    whole, but one parameter at a time.
    """
    if zero.stage_of(accelerator) == 3:
        zero.cut(accelerator, denoiser, _arithmetic(config, share))


def build_engine(config: DictConfig, accelerator: Accelerator, denoiser: nn.Module, share: Share) -> Engine:
    """Wraps the denoiser, whose adapter is in place and on its device, for the launch; all ranks call it.

    Raises:
        ConfigError: an optimizer or a DeepSpeed config that cannot be used.
    """
    optimizer = build_optimizer(config.optimizer, trainable(denoiser).values())
    kind = ZeroEngine if accelerator.distributed_type == DistributedType.DEEPSPEED else PlainEngine
    return kind(accelerator, denoiser, optimizer, _arithmetic(config, share))


def _arithmetic(config: DictConfig, share: Share) -> Arithmetic:
    limit = config.max_grad_norm
    return Arithmetic(
        share.micro_batch, share.accumulation, share.global_batch, None if limit is None else float(limit)
    )


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
        check_random(str(config.backbone.weights))
        quantization = config.backbone.get("quantization")
        check_compiling(quantization, config.backbone.get("compile_blocks"))
        check_quantization(quantization, str(config.backbone.weights))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def outline_of(config: DictConfig) -> Outline:
    """Returns what can be told of the config's backbone without loading a weight.

    Raises:
        ConfigError: its settings or files cannot be used.
    """
    kind = cast("type[Backbone]", resolve_target(str(config.backbone["_target_"])))
    settings = OmegaConf.to_container(config.backbone, resolve=True)
    assert isinstance(settings, dict)
    try:
        return kind.outline({str(key): value for key, value in settings.items()})
    except ValueError as error:
        raise ConfigError(f"backbone: {error}") from error


def build_hooks(config: DictConfig) -> list[EvalHook]:
    """Builds the hooks of the config in the order of their names."""
    return [build_checked(f"eval.{name}", config.eval[name]) for name in sorted(config.eval)]


def add_lora(backbone: Backbone, config: DictConfig) -> AdapterFormat:
    """Adds the adapter of the config to the denoiser.

    Raises:
        ConfigError: targets that match no layer.
    """
    wanted, settings = config.adapter, lora_settings(config)
    try:
        presets, preset = backbone.lora_presets, wanted.preset
        targets = tuple(wanted.targets) if preset is None else preset_targets(presets, str(preset))
        report = add_adapter(backbone.denoiser, settings, targets=targets, seed=int(config.seed))
    except ValueError as error:
        raise ConfigError(f"adapter: {error}") from error
    logger.info("Adapter: %d layers, %.2f M parameters.", report.num_layers, report.num_parameters / 1e6)
    return settings.format
