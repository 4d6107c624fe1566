"""Which values, alone and together, make no run."""

import math
import re

from omegaconf import DictConfig, OmegaConf

from physedit.data_loaders.sample import PromptLevel
from physedit.models.attention import needs_cuda
from physedit.models.backbone import LORA_PRESET_NAMES
from physedit.models.lora import check_settings
from physedit.train.adapter_settings import lora_settings
from physedit.train.config import ConfigError, suggestion
from physedit.train.heldout import check_heldout

AT_LEAST = {
    "num_steps": 1, "global_batch": 1, "micro_batch": 1, "log_every": 1, "num_workers": 0, "num_threads": 1,
    "adapter.rank": 1, "checkpoint.every": 0, "checkpoint.keep": 1, "scenes.num_train": 1, "scenes.num_benchmark": 1,
    "checkpoint.keep_best": 1, "collective_timeout_s": 1,
    "schedule.warmup_steps": 0,
}  # fmt: skip
ABOVE_ZERO = ("max_grad_norm", "adapter.alpha")
LARGEST = 2**31 - 1
AT_MOST = {"num_workers": 256, "num_threads": 1024, "adapter.rank": 8192}
ONE_OF = {
    "resume": ("auto", "never"), "device": ("auto", "cpu", "cuda"), "levels.mode": ("draw", "each"),
    "order.balance": ("none", "law"), "encode.mode": ("live", "cached"), "eval_failures": ("continue", "stop"),
    "float32_matmul_precision": ("highest", "high", "medium"), "adapter.compute_dtype": ("float32", "bfloat16"),
}  # fmt: skip


def check_rules(config: DictConfig) -> None:
    """Checks ranges and cross-field rules of a composed run.

    Raises:
        ConfigError: naming key and value, and what is allowed.
    """
    _check_numbers("", OmegaConf.to_container(config))
    for key, least in AT_LEAST.items():
        value = OmegaConf.select(config, key)
        if value is not None and not (isinstance(value, (int, float)) and value >= least):
            raise ConfigError(f"{key}={value} must be a number of at least {least}.")
    for key, most in AT_MOST.items():
        value = OmegaConf.select(config, key)
        if value is not None and value > most:
            raise ConfigError(f"{key}={value} must be at most {most}.")
    for key in ABOVE_ZERO:
        value = OmegaConf.select(config, key)
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            raise ConfigError(f"{key}={value} must be above 0, or null.")
    for key, known in ONE_OF.items():
        value = OmegaConf.select(config, key)
        if value not in known:
            raise ConfigError(f"{key}={value} is not known. Use {' or '.join(f'{key}={each}' for each in known)}.")
    if config.ema_decay is not None and not 0 < config.ema_decay < 1:
        raise ConfigError(f"ema_decay={config.ema_decay} must lie between 0 and 1, or be null for none.")
    if not 0 <= config.max_dropped_share <= 1:
        raise ConfigError(f"max_dropped_share={config.max_dropped_share} must be a share: from 0 to 1.")
    _check_levels(config)
    name = str(config.run_name)
    if (
        "/" in name
        or name in (".", "..")
        or name != name.strip()
        or not name.isprintable()
        or not 1 <= len(name) <= 200
    ):
        raise ConfigError(
            f"run_name={name!r} must be a plain folder name of 1 to 200 printable characters without '/'."
        )
    _check_batches(config)
    _check_encode(config)
    _check_backbone(config)
    _check_adapter(config)
    _check_evaluations(config)
    check_heldout(config)


def batches_per_step(config: DictConfig, num_processes: int) -> int:
    """Returns the accumulation steps that make up the global batch.

    Raises:
        ConfigError: the global batch is not a multiple of micro_batch times the processes.
    """
    at_once = int(config.micro_batch) * num_processes
    if int(config.global_batch) % at_once:
        raise ConfigError(
            f"global_batch={config.global_batch} does not divide by micro_batch={config.micro_batch} times "
            f"{num_processes} process(es) = {at_once}. Set global_batch to a multiple of {at_once}, "
            f"or change micro_batch."
        )
    return int(config.global_batch) // at_once


def _check_batches(config: DictConfig) -> None:
    """Refuses batches that no number of processes can make up, in terms of the launch that was asked for."""
    if int(config.global_batch) % int(config.micro_batch) == 0:
        return
    if num_processes := _num_processes(config.launch):
        batches_per_step(config, num_processes)
    raise ConfigError(
        f"global_batch={config.global_batch} does not divide by micro_batch={config.micro_batch}, and so not by "
        f"micro_batch times the processes of launch={config.launch.profile or config.launch.kind}. Set global_batch to "
        "a multiple of that, or change micro_batch."
    )


def _num_processes(launch: DictConfig) -> int | None:
    """Returns how many processes a launch says it has, None where that is only seen on the machine."""
    if launch.kind == "none":
        return 1
    if launch.kind != "slurm":
        return None if launch.num_processes is None else max(1, int(launch.num_processes))
    job = launch.slurm
    on_each = job.gpus_per_node if job.processes_per_node is None else job.processes_per_node
    return max(1, int(job.nodes) * int(on_each))


def _check_levels(config: DictConfig) -> None:
    weights = [float(config.levels[level.value]) for level in PromptLevel]
    if min(weights) < 0 or sum(weights) <= 0:
        raise ConfigError(f"levels={dict(config.levels)} must be non-negative with a positive sum.")
    if config.levels.mode == "each" and len({weight for weight in weights if weight}) > 1:
        raise ConfigError(
            f"levels.mode=each shows the levels equally often, but levels={dict(config.levels)} has unlike weights. "
            f"Give each level 1 or 0, or use levels.mode=draw."
        )


def _check_numbers(key: str, value: object) -> None:
    """Refuses NaN, infinity, and whole numbers that no machine counts to."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _check_numbers(f"{key}[{position}]", item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} is not a finite number.")
    elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise ConfigError(f"{key}={value} is beyond {LARGEST}.")


def _check_backbone(config: DictConfig) -> None:
    if config.backbone.get("encoders") == "absent":
        _check_absent(config)
    quantization = config.backbone.get("quantization")
    if quantization is not None and config.device == "cpu":
        raise ConfigError(
            f"backbone.quantization={quantization} needs a CUDA device, but device=cpu was asked. Use device=auto on a "
            "machine with a GPU, or backbone.quantization=null."
        )
    attention = config.backbone.get("attention")
    if config.device == "cpu" and needs_cuda(attention):
        raise ConfigError(
            f"backbone.attention={attention} needs a CUDA device, but device=cpu was asked. Use device=auto on a "
            "machine with a GPU, or backbone.attention=null, native or _native_math."
        )


def _check_absent(config: DictConfig) -> None:
    instead = "Use backbone.encoders=offload, which has them on the device only while they encode, or resident."
    if config.encode.text != "cached":
        raise ConfigError(
            "backbone.encoders=absent leaves out the text encoders, but edits, evaluations and training encode their "
            f"instructions as they go; only training with encode=cached, filled before, does not. {instead}"
        )
    if config.eval:
        raise ConfigError(
            "backbone.encoders=absent leaves out the text encoders, but this run edits in its evaluations "
            f"({', '.join(sorted(map(str, config.eval)))}). {instead} Or train with eval=none and evaluate afterwards."
        )


def _check_encode(config: DictConfig) -> None:
    options = {key: config.encode[key] for key in ("folder", "text", "write_missing")}
    if config.encode.mode == "live":
        given = [f"encode.{key}={value}" for key, value in options.items() if value is not None]
        if given:
            raise ConfigError(f"{', '.join(given)} has no effect with encode=live. Leave it out, or use encode=cached.")
        return
    lacking = [f"encode.{key}" for key, value in options.items() if value is None or value == ""]
    if lacking:
        raise ConfigError(f"No value for {', '.join(lacking)}, which encode.mode=cached needs. Use encode=cached.")
    if options["text"] not in ("cached", "live"):
        raise ConfigError(f"encode.text={options['text']} is not known. Use encode.text=cached or encode.text=live.")


def _check_adapter(config: DictConfig) -> None:
    dropout = config.adapter.dropout
    if not 0 <= dropout < 1:
        raise ConfigError(f"adapter.dropout={dropout} must be at least 0 and below 1; 0 means none.")
    try:
        check_settings(lora_settings(config))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    preset, targets = config.adapter.preset, config.adapter.targets
    if (preset is None) == (targets is None):
        raise ConfigError(
            "adapter.preset and adapter.targets name the same thing: set exactly one of them and null the other."
        )
    if preset is not None and preset not in LORA_PRESET_NAMES:
        raise ConfigError(
            f"adapter.preset={preset} is not known.{suggestion(preset, LORA_PRESET_NAMES)} "
            f"Presets: {', '.join(LORA_PRESET_NAMES)}."
        )


def _check_evaluations(config: DictConfig) -> None:
    for step in config.eval_steps:
        if not 1 <= step <= config.num_steps:
            raise ConfigError(
                f"eval_steps asks for step {step}, but the run has steps 1 to num_steps={config.num_steps}. "
                f"Set eval_steps=[] or raise num_steps."
            )
    for name in map(str, config.eval):
        key = f"eval.{name}.cadence"
        for step in OmegaConf.select(config, f"{key}.steps") or ():
            if not 1 <= step <= config.num_steps:
                raise ConfigError(
                    f"{key}.steps asks for step {step}, but the run has steps 1 to num_steps={config.num_steps}. "
                    f"Remove it, raise num_steps, or use {key}.at_start for the base."
                )
        if (OmegaConf.select(config, f"{key}.every") or 0) < 0:
            raise ConfigError(f"{key}.every must be at least 0; 0 means never.")
    names = {str(config.eval[name].get("name", name)) for name in config.eval}
    for name in sorted(names):
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(
                f"eval: the name {name!r} must be made of letters, digits, '_' and '-': it names a folder."
            )
    if config.best_psnr_floor_db is not None and config.best_metric is None:
        raise ConfigError(
            f"best_psnr_floor_db={config.best_psnr_floor_db} narrows the steps of best_metric, which is not set. "
            f"Set best_metric, or best_psnr_floor_db=null."
        )
    if config.best_metric is not None and config.best_metric.split("/")[0] not in names:
        raise ConfigError(
            f"best_metric={config.best_metric} belongs to no evaluation of this run. "
            f"Evaluations: {', '.join(sorted(names)) or 'none'}. Choose one with eval=NAME, or set best_metric=null."
        )
