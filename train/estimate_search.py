"""Which settings fit a GPU: the knobs to turn for a run that does not fit, and all that fit, by speed."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from physedit.train.config import ConfigError
from physedit.train.estimate import Estimate, estimate
from physedit.train.estimate_gpus import Gpu, TimeRange, fits, time_range

Settings = Mapping[str, object]
_KNOBS: tuple[Settings, ...] = (
    {"backbone.gradient_checkpointing": True},
    {"backbone.encoders": "offload"},
    {"micro_batch": 1},
    {"launch.profile": "zero2"},
    {"backbone.quantization": "bnb_nf4"},
)
"""In the order in which they cost: time, then time waiting for encoders, then exactness of the base."""
_LAST_KNOB: Settings = {"launch.profile": "zero3", "backbone.quantization": None}
_MICRO_BATCHES = (1, 2, 4, 8)
_PROFILES = ("ddp", "zero2", "zero3")


@dataclass(frozen=True, slots=True)
class Found:
    """Settings of a run, as overrides, with what they take and how long a step then takes."""

    overrides: tuple[str, ...]
    estimate: Estimate
    time: TimeRange


@dataclass(frozen=True, slots=True)
class Turn:
    """A knob, as overrides, and the peak in bytes once it and those before it are turned."""

    overrides: tuple[str, ...]
    peak: int
    is_enough: bool


def knobs_to_turn(config: DictConfig, gpu: Gpu) -> list[Turn]:
    """Returns what to change, one after the other, until the run fits, or until there is nothing more to change."""
    turns: list[Turn] = []
    now, lowest = config, estimate(config).peak
    for settings in (*_KNOBS, _LAST_KNOB):
        if turns and turns[-1].is_enough:
            break
        changed = _changed(now, settings)
        found = None if changed is None else _estimate_or_none(changed)
        if changed is None or found is None or found.peak >= lowest:
            continue
        now, lowest = changed, found.peak
        turns.append(Turn(_overrides(settings), found.peak, fits(found, gpu)))
    return turns


def search(config: DictConfig, gpu: Gpu) -> list[Found]:
    """Returns the settings that fit ``gpu`` by samples a second, then exactness of the base, then memory.

    Varied are the launch of several processes, checkpointing, where the encoders are, quantisation and micro batch.

    Raises:
        ConfigError: a dtype whose rates are not known.
    """
    if config.backbone.dtype != "bfloat16":
        raise ConfigError(
            f"--search sorts by speed, but the rates of backbone.dtype={config.backbone.dtype} are not known. Use "
            "backbone.dtype=bfloat16, or leave --search out."
        )
    found = []
    for settings in _combinations(config):
        changed = _changed(config, settings)
        one = None if changed is None else _estimate_or_none(changed)
        if one is not None and fits(one, gpu):
            found.append(Found(_overrides(settings), one, time_range(one, gpu)))
    return sorted(found, key=_order)


def _order(found: Found) -> tuple[float, bool, int]:
    is_quantized = "backbone.quantization=null" not in found.overrides
    return -round(found.time.least_samples_s, 3), is_quantized, found.estimate.peak


def _combinations(config: DictConfig) -> Iterator[dict[str, object]]:
    launches: list[dict[str, object]] = [{}]
    if _is_local(config):
        launches = [{"launch.profile": profile} for profile in _PROFILES]
    encoders = [str(config.backbone.encoders)] if config.encode.mode == "cached" else ["resident", "offload"]
    for launch, checkpointing, place, quantization, micro_batch in itertools.product(
        launches, (False, True), encoders, (None, "bnb_nf4"), _MICRO_BATCHES
    ):
        yield launch | {
            "backbone.gradient_checkpointing": checkpointing,
            "backbone.encoders": place,
            "backbone.quantization": quantization,
            "micro_batch": micro_batch,
        }


def _changed(config: DictConfig, settings: Settings) -> DictConfig | None:
    """Returns a copy with other settings; None if they do not belong to this launch."""
    if "launch.profile" in settings and not _is_local(config):
        return None
    changed = config.copy()
    for key, value in settings.items():
        OmegaConf.update(changed, key, value)
    return changed


def _is_local(config: DictConfig) -> bool:
    launch = config.launch
    return bool(launch.kind == "local" and launch.device == "cuda" and launch.num_machines == 1)


def _estimate_or_none(config: DictConfig) -> Estimate | None:
    """Returns None for settings that no run can have, such as ZeRO-3 over a quantised base."""
    try:
        return estimate(config)
    except ConfigError:
        return None


def _overrides(settings: Settings) -> tuple[str, ...]:
    return tuple(
        f"launch={value}" if key == "launch.profile" else f"{key}={_shown(value)}" for key, value in settings.items()
    )


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
