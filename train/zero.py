"""What DeepSpeed is told before its engine runs: environment, config, and the cut of ZeRO-3.

Adapters are float32 and the base keeps its own dtype, so DeepSpeed's own mixed precision stays off: it would round the
adapters. Every number of the batch arithmetic is written into DeepSpeed's config; ``zero_engine`` reads it back.
"""

import copy
import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from physedit.train.config import ConfigError
from physedit.train.engine import Arithmetic

STAGES = (1, 2, 3)
_AUTO = "auto"


def asked_for() -> bool:
    """True if the launch asks for DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("true", "1")


def prepare_environment(*, on_cpu: bool) -> None:
    """Sets what DeepSpeed and accelerate read from the environment, before either looks."""
    # DeepSpeed calls them by names that torch is giving up; nothing in a run can be done about it.
    warnings.filterwarnings(
        "ignore",
        message=r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor` is deprecated",
        category=FutureWarning,
    )
    if not on_cpu:
        return
    os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu"}
    # True here switches DeepSpeed off without a word.
    os.environ["ACCELERATE_USE_CPU"] = "false"
    import deepspeed

    # Communication within one machine, which DeepSpeed would compile for two minutes; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def forget_transformers_config() -> None:
    """Takes back what accelerate told transformers: else each model it builds from here on is partitioned at once."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]


def stage_of(accelerator: Accelerator) -> int:
    """Returns the stage of ZeRO that the launch asks for, 0 without DeepSpeed."""
    plugin = accelerator.state.deepspeed_plugin
    return 0 if plugin is None else int(plugin.zero_stage)


def config_of(given: Mapping[str, Any], arithmetic: Arithmetic, num_processes: int) -> dict[str, Any]:
    """Returns DeepSpeed's config with the run's own numbers in it. Pure.

    Args:
        given: the launch's config; entries that are ``auto`` are left to DeepSpeed's defaults.
        arithmetic: of the run.
        num_processes: of the launch.

    Raises:
        ConfigError: it asks for something that the run decides.
    """
    foreign = [key for key in ("optimizer", "scheduler") if key in given]
    if foreign:
        raise ConfigError(
            f"DeepSpeed's config sets {' and '.join(foreign)}, which the run's own settings decide (optimizer=NAME, "
            f"schedule=NAME). Remove it from that file."
        )
    zero = _without_auto(dict(given.get("zero_optimization", {})))
    if zero.get("stage") not in STAGES:
        raise ConfigError(
            f"DeepSpeed's config asks for ZeRO stage {zero.get('stage')}, but the stages are 1, 2 and 3. Launch with "
            f"launch/accelerate/zero2.yaml, or with launch/accelerate/ddp.yaml for none."
        )
    return _without_auto(copy.deepcopy(dict(given))) | {
        "zero_optimization": zero,
        "train_batch_size": arithmetic.micro_batch * arithmetic.accumulation * num_processes,
        "train_micro_batch_size_per_gpu": arithmetic.micro_batch,
        "gradient_accumulation_steps": arithmetic.accumulation,
        "gradient_clipping": arithmetic.max_grad_norm or 0.0,
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        # The optimizer is the run's own, also where its state lies in the machine's memory.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31 - 1,
    }


def _without_auto(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if value != _AUTO
    }


def cut(accelerator: Accelerator, denoiser: nn.Module, arithmetic: Arithmetic) -> None:
    """Cuts the parameters of ``denoiser`` over the ranks, as ZeRO-3 keeps them; all ranks call it.

    One parameter after the other goes to the device, is made that of rank 0 and is cut, so that a denoiser that lies in
    the machine's memory is never whole on a device. What is cut already is left alone.

    Raises:
        ConfigError: see ``config_of``.
    """
    import deepspeed

    given = accelerator.state.deepspeed_plugin.deepspeed_config
    config = config_of(given, arithmetic, accelerator.num_processes)
    # What DeepSpeed's engine would do itself, had it not moved the whole module to the device before.
    deepspeed.zero.Init(module=denoiser, config_dict_or_path=config, dtype=torch.float32)
