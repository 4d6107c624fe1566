"""Which settings fit a GPU: the knobs to turn for a run that does not fit, and all that fit, by speed."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from physedit.train.config import ConfigError
from physedit.train.estimate import Estimate, estimate
from physedit.train.estimate_gpus import Gpu, TimeRange, fits, time_range

Settings = Mapping[str, object]
_PROFILE, _CHECKPOINTING, _ENCODERS = "launch.profile", "backbone.gradient_checkpointing", "backbone.encoders"
_QUANTIZATION, _MICRO_BATCH = "backbone.quantization", "micro_batch"
_PRODUCTS, _TF32 = "adapter.compute_dtype", "float32_matmul_precision"
_KNOBS: tuple[Settings, ...] = (
    {_PRODUCTS: "bfloat16"},
    {_CHECKPOINTING: True},
    {_ENCODERS: "offload"},
    {_MICRO_BATCH: 1},
    {_PROFILE: "zero2"},
    {_QUANTIZATION: "bnb_nf4"},
)
"""In the order in which they cost: digits of the adapter's products, time, time waiting for encoders, then exactness of
the base."""
_LAST_KNOB: Settings = {_PROFILE: "zero3", _QUANTIZATION: None}
_MICRO_BATCHES = (1, 2, 4, 8)
_SHARES: tuple[bool | int, ...] = (False, 3, 2, True)
"""Of blocks that are recomputed: none, every third, every second, all."""
_PROFILES = ("ddp", "zero2", "zero3")
"""The simplest first."""
EQUALLY_FAST = 0.02
"""Ours: settings whose seconds a sample differ by less, relative to the fastest of them, are not told apart."""


@dataclass(frozen=True, slots=True)
class Found:
    """Settings of a run, as overrides, with what they take and how long a step then takes.

    Attributes:
        overrides: of the command line.
        estimate: of memory and arithmetic.
        time: of a step.
        rank: 1 for the fastest; settings that are not told apart have one rank.
    """

    overrides: tuple[str, ...]
    estimate: Estimate
    time: TimeRange
    rank: int


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search found.

    Attributes:
        found: settings that fit, in the order of ``search``.
        num_settings: that were looked at, those included that must take more than one that does not fit.
        nearest: where none fits, the settings that take least; None if there are none at all.
    """

    found: tuple[Found, ...]
    num_settings: int
    nearest: Found | None


@dataclass(frozen=True, slots=True)
class Turn:
    """A knob, as overrides, and the peak in bytes once it and those before it are turned."""

    overrides: tuple[str, ...]
    peak: int
    is_enough: bool


@dataclass(frozen=True, slots=True)
class FasterProducts:
    """Another precision of the adapter's products, as overrides, with the peak in bytes and the time of a step."""

    overrides: tuple[str, ...]
    peak: int
    time: TimeRange


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


def nearest_knob(config: DictConfig, gpu: Gpu) -> Turn | None:
    """Returns the one change that lowers the peak most; None where none lowers it."""
    turns = []
    before = estimate(config).peak
    for settings in (*_KNOBS, _LAST_KNOB):
        changed = _changed(config, settings)
        found = None if changed is None else _estimate_or_none(changed)
        if found is not None and found.peak < before:
            turns.append(Turn(_overrides(settings), found.peak, fits(found, gpu)))
    return min(turns, key=lambda turn: turn.peak, default=None)


def faster_products(config: DictConfig, gpu: Gpu) -> FasterProducts | None:
    """Returns what becomes of a bfloat16 base if the adapter's float32 products are no longer so, or not as exactly.

    They may be bfloat16, but of DoRA, whose may be TF32. None where none are float32, or TF32 is all that there is.
    """
    is_dora = bool(config.adapter.use_dora)
    is_done = config[_TF32] != "highest" if is_dora else config.adapter.compute_dtype != "float32"
    settings: Settings = {_TF32: "high"} if is_dora else {_PRODUCTS: "bfloat16"}
    changed = _changed(config, settings)
    if is_done or changed is None or config.backbone.dtype != "bfloat16":
        return None
    found = estimate(changed)
    return FasterProducts(_overrides(settings), found.peak, time_range(found, gpu))


def search(config: DictConfig, gpu: Gpu) -> Searched:
    """Returns the settings that fit ``gpu``, fastest first.

    Varied are the launch of several processes, the share of blocks that are recomputed, where the encoders are,
    quantisation and micro batch; the global batch stays. Speed is ``TimeRange.sample_s``. Settings within
    ``EQUALLY_FAST`` of the fastest among them have one rank and are ordered by what they cost otherwise: the exact base
    first, then the simplest launch, then the lower peak.

    Raises:
        ConfigError: a dtype whose rates are not known.
    """
    if config.backbone.dtype != "bfloat16":
        raise ConfigError(
            f"--search sorts by speed, but the rates of backbone.dtype={config.backbone.dtype} are not known. Use "
            "backbone.dtype=bfloat16, or leave --search out."
        )
    found: list[Found] = []
    nearest: Found | None = None
    num_settings = 0
    too_much: set[tuple[object, ...]] = set()
    for settings in _combinations(config):
        others = tuple(value for key, value in settings.items() if key != _MICRO_BATCH)
        changed = _changed(config, settings)
        num_settings += 1
        # A larger micro batch takes more.
        one = None if changed is None or others in too_much else _estimate_or_none(changed)
        if one is None:
            continue
        entry = Found(_overrides(settings), one, time_range(one, gpu), 0)
        if fits(one, gpu):
            found.append(entry)
            continue
        too_much.add(others)
        nearest = entry if nearest is None or one.peak < nearest.estimate.peak else nearest
    return Searched(tuple(_ranked(found)), num_settings, None if found else nearest)


def _ranked(found: Sequence[Found]) -> Iterator[Found]:
    fastest_first = sorted(found, key=lambda each: each.time.sample_s)
    rank = 1
    while fastest_first:
        limit = fastest_first[0].time.sample_s * (1 + EQUALLY_FAST)
        group = list(itertools.takewhile(lambda each: each.time.sample_s <= limit, fastest_first))  # noqa: B023
        for each in sorted(group, key=_cost):
            yield Found(each.overrides, each.estimate, each.time, rank)
        rank += len(group)
        fastest_first = fastest_first[len(group) :]


def _cost(found: Found) -> tuple[bool, int, int]:
    is_quantized = f"{_QUANTIZATION}=null" not in found.overrides
    return is_quantized, found.estimate.placement.zero_stage, found.estimate.peak


def _combinations(config: DictConfig) -> Iterator[dict[str, object]]:
    """Yields settings, those of one micro batch after those of smaller ones that are else the same."""
    launches: list[dict[str, object]] = [{}]
    if _is_local(config):
        launches = [{_PROFILE: profile} for profile in _PROFILES]
    encoders = [str(config.backbone.encoders)] if config.encode.mode == "cached" else ["resident", "offload"]
    for launch, checkpointing, place, quantization, micro_batch in itertools.product(
        launches, _SHARES, encoders, (None, "bnb_nf4"), _MICRO_BATCHES
    ):
        yield launch | {
            _CHECKPOINTING: checkpointing,
            _ENCODERS: place,
            _QUANTIZATION: quantization,
            _MICRO_BATCH: micro_batch,
        }


def _changed(config: DictConfig, settings: Settings) -> DictConfig | None:
    """Returns a copy with other settings; None if they do not belong to this launch."""
    if _PROFILE in settings and not _is_local(config):
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
    return tuple(f"launch={value}" if key == _PROFILE else f"{key}={_shown(value)}" for key, value in settings.items())


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
