"""Evaluates a saved adapter with a run's hooks, outside training: ``physedit eval``."""

import re
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalContext, EvalReport
from physedit.eval_hooks.report import write_html_report
from physedit.models.adapter_file import AdapterFormat, check_fit
from physedit.models.backbone import Backbone
from physedit.models.lora import adapter_state, preset_targets, without_adapter
from physedit.models.lora_targets import matching_layers, shortened
from physedit.train.adapter_settings import adapter_id, lora_settings
from physedit.train.assemble import build_checked, build_hooks, start_processes, write_scenes
from physedit.train.config import ConfigError
from physedit.train.processes import Processes
from physedit.train.run_folder import base_cache_of
from physedit.train.saved_adapter import SavedAdapter, attach, check_saved, find_adapter, read_saved
from physedit.train.summary import best_rule, summarize


def step_of(adapter: Path) -> int | None:
    """Returns the step in the name of the checkpoint that an adapter's file lies in, or None."""
    match = re.fullmatch(r"step_(\d+)", adapter.resolve().parent.parent.name)
    return int(match[1]) if match else None


def evaluate(config: DictConfig, checkpoint: Path, out: Path, step: int) -> list[EvalReport]:
    """Runs every hook of the config on the adapter and writes ``out``; returns their reports.

    Args:
        config: a composed training config; its backbone, adapter, eval and scenes are used.
        checkpoint: what ``find_adapter`` takes.
        out: where eval/, summary.json and report.html are written.
        step: the number the reports carry; at least 1.

    Raises:
        ConfigError: the config names no hook, or the adapter does not fit it.
    """
    if not config.eval:
        raise ConfigError("The config has no evaluation. Choose one, for example eval=scenes.")
    adapter = find_adapter(checkpoint)
    check_saved(adapter)
    accelerator = start_processes(config)
    processes = Processes(accelerator.num_processes, accelerator.process_index)
    with processes.until_the_end():
        with processes.rank_0_first():
            write_scenes(config)
        hooks = build_hooks(config)
        for hook in hooks:
            hook.check()
        backbone: Backbone = build_checked("backbone", config.backbone)
        attach(backbone, _as_asked(read_saved(adapter), backbone, config), lora_settings(config).compute_dtype)
        backbone.to(accelerator.device)
        out.mkdir(parents=True, exist_ok=True)
        context = EvalContext(
            step=step,
            backbone=backbone,
            denoiser=backbone.denoiser,
            without_adapter=lambda: without_adapter(backbone.denoiser),
            run_folder=out,
            base_cache=base_cache_of(config),
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            barrier=processes.wait,
            device=accelerator.device,
            adapter_id=adapter_id(backbone.denoiser, adapter_state(backbone.denoiser)),
            adapter_file=adapter,
        )
        reports = [hook.run(context) for hook in hooks]
        if accelerator.is_main_process:
            write_json(out / "summary.json", summarize(str(config.run_name), reports, best_rule(config)))
            write_html_report(out, reports, title=f"{config.run_name}, {adapter.resolve().parent.parent.name}")
    return reports


def _as_asked(saved: SavedAdapter, backbone: Backbone, config: DictConfig) -> SavedAdapter:
    """Returns the adapter with the format of its file, which the config must ask for, or else of the config.

    Raises:
        ConfigError: the config asks for another format or other layers than the file holds.
    """
    wanted, asked = config.adapter, lora_settings(config).format
    try:
        if saved.is_told:
            _check_format(saved.format, asked)
        else:
            check_fit(saved.state, asked)
        presets, preset = backbone.lora_presets, wanted.preset
        targets = tuple(wanted.targets) if preset is None else preset_targets(presets, str(preset))
        _check_layers(set(saved.layers), set(matching_layers(backbone.denoiser, targets)))
    except ValueError as error:
        raise ConfigError(f"{saved.file}: {error}") from error
    return replace(saved, format=asked)


def _check_layers(held: set[str], asked: set[str]) -> None:
    if held != asked:
        raise ValueError(
            f"the file holds an adapter of {len(held)} layers, but the config asks for {len(asked)}: not in the file "
            f"{shortened(sorted(asked - held))}; in the file alone {shortened(sorted(held - asked))}. Set "
            "adapter.preset, or adapter.preset=null and adapter.targets, to what it was trained with."
        )


def _check_format(held: AdapterFormat, asked: AdapterFormat) -> None:
    if held == asked:
        return
    found, wanted = _settings(held), _settings(asked)
    differing = [key for key in found if found[key] != wanted[key]]
    raise ValueError(
        f"the file holds an adapter with {', '.join(f'{key} {found[key]}' for key in differing)}, but the config asks "
        f"for {', '.join(f'{key} {wanted[key]}' for key in differing)}. Set "
        f"{' '.join(f'adapter.{key}={found[key]}' for key in differing)}."
    )


def _settings(adapter_format: AdapterFormat) -> dict[str, str]:
    """Returns the format as the values of its keys below ``adapter``."""
    return {
        "rank": str(adapter_format.rank),
        "alpha": f"{adapter_format.alpha:g}",
        "use_dora": str(adapter_format.use_dora).lower(),
        "use_rslora": str(adapter_format.use_rslora).lower(),
    }
