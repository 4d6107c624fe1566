"""``physedit estimate``: what a run takes, before it is paid for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from physedit.train.cli_options import ConfigDir
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from physedit.train.estimate import Estimate
    from physedit.train.estimate_gpus import Gpu, TimeRange
    from physedit.train.estimate_search import FasterProducts, Found, Searched, Turn

_SHOWN_FOUND = 12


def estimate(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Hydra overrides, such as experiment=pica100k_kontext launch=zero2")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Of this kind, such as H100: whether it fits, and how long a step takes.")
    ] = None,
    search: Annotated[bool, typer.Option("--search", help="List the settings that fit --gpu, fastest first.")] = False,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in bytes and seconds.")] = False,
) -> None:
    """Tells memory, disk, arithmetic and time of a run from its architecture alone; nothing is loaded."""
    if search and gpu is None:
        raise ConfigError("--search lists what fits a GPU, but none was named. Add --gpu, such as --gpu H100.")
    config = compose_config(overrides or [], config_dir=config_dir)
    from physedit.train import estimate as estimating
    from physedit.train.estimate_gpus import find_gpu

    kind = None if gpu is None else find_gpu(gpu)
    found = estimating.estimate(config)
    if kind is not None and not found.placement.on_gpu:
        raise ConfigError(f"--gpu {gpu} has no effect on a launch that computes on CPUs. Leave it out.")
    answer = None if gpu is None or kind is None else _ask(config, found, gpu, kind, search=search)
    if as_json:
        record = asdict(found) | {"peak": found.peak, "on_gpu": None if answer is None else asdict(answer)}
        typer.echo(json.dumps(record, indent=2))
    else:
        typer.echo("\n".join([*_described(found), *([] if answer is None else _on_gpu(answer))]))


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was asked of one kind of GPU; ``time`` is None for a dtype whose rates the table lacks."""

    name: str
    gpu: Gpu
    reserve: int
    fits: bool
    turns: list[Turn]
    nearest: Turn | None
    time: TimeRange | None
    faster_products: FasterProducts | None
    searched: Searched | None


def _ask(config: DictConfig, found: Estimate, name: str, gpu: Gpu, *, search: bool) -> _Answer:
    from physedit.train import estimate_search
    from physedit.train.estimate import RESERVE_BYTES
    from physedit.train.estimate_gpus import fits, time_range

    is_fitting = fits(found, gpu)
    turns = [] if is_fitting else estimate_search.knobs_to_turn(config, gpu)
    can_fit = is_fitting or (bool(turns) and turns[-1].is_enough)
    return _Answer(
        name,
        gpu,
        RESERVE_BYTES,
        is_fitting,
        turns,
        None if can_fit else estimate_search.nearest_knob(config, gpu),
        time_range(found, gpu) if config.backbone.dtype == "bfloat16" else None,
        estimate_search.faster_products(config, gpu),
        estimate_search.search(config, gpu) if search else None,
    )


def _described(found: Estimate) -> list[str]:
    place, step = found.placement, found.step
    samples = found.micro_batch * found.accumulation * place.num_processes
    lines = [
        f"{place.num_processes} process(es), {place.profile}: {found.micro_batch} sample(s) x {found.accumulation} "
        f"accumulated x {place.num_processes} = {samples} a step, {found.num_tokens} tokens each",
        f"transformer {found.num_base:,} parameters; adapter {found.adapter.num_parameters:,} on "
        f"{found.adapter.num_layers} layers",
        "",
        "GiB a GPU, at the peak:" if place.on_gpu else "GiB a process, at the peak:",
        *(f"  {name:16}{_gib(size):>8}" for name, size in found.rows.items() if size),
        f"  {'peak':16}{_gib(found.peak):>8}",
        "  most in each phase: " + ", ".join(f"{name} {_gib(size)}" for name, size in found.phases.items()),
    ]
    if found.host:
        lines.append(f"the machine's memory {_gib(found.host)} GiB a process")
    lines.append(f"a checkpoint {_gib(found.checkpoint)} GiB, up to {found.num_checkpoints} kept")
    if found.pair:
        lines.append(f"encoded cache {found.pair / 2**20:.2f} MiB a pair")
    total = found.accumulation * (step.flops + found.micro_batch * found.encoding_flops)
    slow = found.accumulation * step.slow_flops
    in_float32 = f", {slow / 1e12:,.0f} of them in float32 for the adapter" if slow else ""
    lines.append(f"a step {total / 1e12:,.0f} TFLOP a GPU{in_float32}")
    return lines


def _on_gpu(answer: _Answer) -> list[str]:
    room = f"{answer.name} has {_gib(answer.gpu.memory)} GiB, of which {_gib(answer.reserve)} are kept free"
    lines = ["", f"{'fits' if answer.fits else 'does not fit'}: {room}"]
    for turn in answer.turns:
        lines.append(f"  {_turned(turn)}")
    if not answer.fits and not (answer.turns and answer.turns[-1].is_enough):
        if answer.nearest is not None:
            lines.append(f"  of one change, the nearest: {_turned(answer.nearest)}")
        lines.append("  nothing more to turn: lower backbone.area_px or adapter.rank, or take a larger GPU")
    if answer.time is not None:
        lines.append(
            f"{answer.time.fast_s:.1f} to {answer.time.slow_s:.1f} s a step, {_speed(answer.time)}, "
            f"{answer.time.sample_s:.3g} s a sample: not measured"
        )
    if (faster := answer.faster_products) is not None:
        lines.append(
            f"{faster.time.fast_s:.1f} to {faster.time.slow_s:.1f} s a step, {faster.time.sample_s:.3g} s a sample and "
            f"{_gib(faster.peak)} GiB with {' '.join(faster.overrides)}, which rounds the products of the adapter"
        )
    return lines if answer.searched is None else [*lines, "", *_listed(answer.searched, answer)]


def _listed(searched: Searched, answer: _Answer) -> list[str]:
    if not searched.found:
        lines = [f"none of {searched.num_settings} settings fits {answer.name}"]
        if (least := searched.nearest) is not None:
            over = least.estimate.peak + answer.reserve - answer.gpu.memory
            settings = " ".join(least.overrides)
            lines.append(f"  nearest, with {_gib(over)} GiB too much, {_gib(least.estimate.peak)} GiB: {settings}")
        return lines
    return [
        f"{len(searched.found)} of {searched.num_settings} settings fit, fastest first; those of one rank within 2 %:",
        "the exact base, the simpler launch and the lower peak come first. Seconds a sample are the whole launch's and",
        "not measured.",
        f"  {'rank':>4} {'s/sample':>8} {'range':>14} {'GiB':>7}  settings",
        *(f"  {each.rank:>4} {_row(each)}" for each in searched.found[:_SHOWN_FOUND]),
    ]


def _row(found: Found) -> str:
    best, worst = 1 / found.time.most_samples_s, 1 / found.time.least_samples_s
    span = f"{best:.3g}-{worst:.3g}"
    return f"{found.time.sample_s:>8.3g} {span:>14} {_gib(found.estimate.peak):>7}  {' '.join(found.overrides)}"


def _turned(turn: Turn) -> str:
    return f"{' '.join(turn.overrides)} -> {_gib(turn.peak)} GiB{': fits' if turn.is_enough else ''}"


def _speed(time: TimeRange) -> str:
    return f"{time.least_samples_s:.2f} to {time.most_samples_s:.2f} samples/s"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"
