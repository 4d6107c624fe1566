"""Evaluates a saved adapter with a run's hooks, outside training: ``physedit eval``."""

import logging
import re
from pathlib import Path

from omegaconf import DictConfig

from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalContext, EvalReport, weights_digest
from physedit.eval_hooks.report import write_html_report
from physedit.models.adapter_file import AdapterFormat
from physedit.models.backbone import Backbone
from physedit.models.lora import adapter_state, load_state, without_adapter
from physedit.train.assemble import add_lora, build_checked, build_hooks, start_processes, write_scenes
from physedit.train.checkpoint import verify
from physedit.train.config import ConfigError
from physedit.train.run_folder import base_cache_of
from physedit.train.summary import summarize

logger = logging.getLogger(__name__)


def run_of(adapter: Path) -> Path | None:
    """Returns the run folder that an adapter's folder lies in, or None outside one."""
    run = adapter.resolve().parent.parent.parent
    return run if (run / "overrides.txt").is_file() else None


def overrides_of(run: Path | None) -> list[str]:
    """Returns the overrides a run was started with; none without a run."""
    return [] if run is None else (run / "overrides.txt").read_text(encoding="utf-8").splitlines()


def step_of(adapter: Path) -> int | None:
    """Returns the step in the name of the checkpoint that an adapter's folder lies in, or None."""
    match = re.fullmatch(r"step_(\d+)", adapter.resolve().parent.name)
    return int(match[1]) if match else None


def adapter_folder(checkpoint: Path) -> Path:
    """Returns the folder with the adapter's file: ``checkpoint/adapter`` or ``checkpoint`` itself.

    Raises:
        ConfigError: neither holds an adapter.
    """
    for folder in (checkpoint / "adapter", checkpoint):
        if (folder / "pytorch_lora_weights.safetensors").is_file():
            return folder
    raise ConfigError(
        f"{checkpoint} holds no adapter. Give a checkpoint folder such as runs/demo/checkpoints/step_00000800, "
        f"or a folder with pytorch_lora_weights.safetensors."
    )


def evaluate(config: DictConfig, checkpoint: Path, out: Path, step: int) -> list[EvalReport]:
    """Runs every hook of the config on the adapter and writes ``out``; returns their reports.

    Args:
        config: a composed training config; its backbone, adapter, eval and scenes are used.
        checkpoint: a checkpoint folder, or a folder with the adapter's file.
        out: where eval/, summary.json and report.html are written.
        step: the number the reports carry; at least 1.

    Raises:
        ConfigError: the config names no hook, or the adapter does not fit it.
    """
    if not config.eval:
        raise ConfigError("The config has no evaluation. Choose one, for example eval=scenes.")
    folder = adapter_folder(checkpoint)
    if (folder.parent / "manifest.json").is_file():
        verify(folder.parent)
    accelerator = start_processes(config)
    write_scenes(config)
    hooks = build_hooks(config)
    for hook in hooks:
        hook.check()
    backbone: Backbone = build_checked("backbone", config.backbone)
    wanted = add_lora(backbone, config)
    try:
        _check_format(backbone.adapter_format(str(folder)), wanted)
        load_state(backbone.denoiser, backbone.load_adapter(str(folder)))
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}") from error
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
        barrier=accelerator.wait_for_everyone,
        device=accelerator.device,
        adapter_id=weights_digest(adapter_state(backbone.denoiser)),
    )
    reports = [hook.run(context) for hook in hooks]
    if accelerator.is_main_process:
        write_json(out / "summary.json", summarize(str(config.run_name), reports, config.best_metric))
        write_html_report(out, reports, title=f"{config.run_name}, {folder.parent.name}")
    return reports


def _check_format(found: AdapterFormat | None, wanted: AdapterFormat) -> None:
    if found is None or found == wanted:
        return
    held, asked = _settings(found), _settings(wanted)
    differing = [key for key in held if held[key] != asked[key]]
    raise ValueError(
        f"the file holds an adapter with {', '.join(f'{key} {held[key]}' for key in differing)}, but the config asks "
        f"for {', '.join(f'{key} {asked[key]}' for key in differing)}. Set "
        f"{' '.join(f'adapter.{key}={held[key]}' for key in differing)}."
    )


def _settings(adapter_format: AdapterFormat) -> dict[str, str]:
    """Returns the format as the values of its keys below ``adapter``."""
    return {
        "rank": str(adapter_format.rank),
        "alpha": f"{adapter_format.alpha:g}",
        "use_dora": str(adapter_format.use_dora).lower(),
        "use_rslora": str(adapter_format.use_rslora).lower(),
    }
