"""Supervised fine-tuning of an editor's adapter: builds the parts, runs the loop, writes the results."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from omegaconf import DictConfig, OmegaConf

from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.sample import EditDataset, PromptLevel
from physedit.eval_hooks.hook import EvalHook, EvalReport
from physedit.models.backbone import Backbone
from physedit.models.lora import load_state
from physedit.train.assemble import (
    add_lora,
    build_checked,
    build_hooks,
    check_backbone,
    scenes_are_missing,
    start_processes,
    write_scenes,
)
from physedit.train.checkpoint import CheckpointStore
from physedit.train.config import ConfigError
from physedit.train.events import Policy, RunEvents
from physedit.train.loop import Trainer, fit
from physedit.train.optim import build_optimizer
from physedit.train.progress import ProgressBar
from physedit.train.run_folder import check_run_folder, claim_run_folder
from physedit.train.signals import StopFlag
from physedit.train.state import AdapterAverage, Progress, restore_optimizer, trainable
from physedit.train.tracker import MetricsFile, NoTracker, Tracker
from physedit.train.validation import batches_per_step

logger = logging.getLogger(__name__)


def check(config: DictConfig) -> None:
    """Opens what the run will read, without a model, and verifies the run folder; writes nothing.

    Raises:
        ValueError: one paragraph with key or path, what was found and the remedy.
    """
    check_run_folder(config)
    check_backbone(config)
    if not scenes_are_missing(config):
        _check_levels(config, build_checked("data", config.data))
        for hook in build_hooks(config):
            hook.check()
    for name in ("objective", "schedule", "tracker"):
        build_checked(name, config[name])


def train(config: DictConfig, overrides: Sequence[str], command: str, stop: StopFlag) -> list[EvalReport]:
    """Runs or resumes the training run of ``config``; returns the reports of its hooks.

    Every process of the launch calls it with the same arguments.

    Raises:
        ValueError: input that cannot be used, found before the first step.
        NonFiniteLoss: the loss is not finite.
        Stopped: a signal arrived; the run is saved.
    """
    accelerator = start_processes(config)
    accumulation = batches_per_step(config, accelerator.num_processes)
    _check_same_config(accelerator, config)
    with accelerator.main_process_first():
        write_scenes(config)
    dataset: EditDataset = build_checked("data", config.data)
    hooks = build_hooks(config)
    for hook in hooks:
        hook.check()
    backbone: Backbone = build_checked("backbone", config.backbone)
    adapter_format = add_lora(backbone, config)
    backbone.to(accelerator.device)
    optimizer = build_optimizer(config.optimizer, trainable(backbone.denoiser).values())
    folder = Path(str(config.output_root)) / str(config.run_name)
    if accelerator.is_main_process:
        claim_run_folder(config, overrides, command, accelerator)
    accelerator.wait_for_everyone()

    average = None if config.ema_decay is None else AdapterAverage(backbone.denoiser, config.ema_decay)
    store = CheckpointStore(folder / "checkpoints", backbone, adapter_format, OmegaConf.to_yaml(config, resolve=True))
    newest = store.newest()
    start = Progress()
    if newest is not None:
        snapshot = store.load(newest)
        load_state(backbone.denoiser, snapshot.live)
        restore_optimizer(backbone.denoiser, optimizer, snapshot.optimizer)
        if average is not None:
            average.load(snapshot.adapter)
        start = snapshot.progress
        logger.info("Resuming from %s.", newest)

    share = Share(int(config.micro_batch), accumulation, accelerator.process_index, accelerator.num_processes)
    last_position = int(config.num_steps) * int(config.global_batch)

    def batches(position: int) -> Iterator[PositionedBatch]:
        return iter(
            TrainingBatches(
                dataset,
                seed=int(config.seed),
                level_weights={PromptLevel(str(k)): float(v) for k, v in config.levels.items()},
                share=share,
                start_position=position,
                stop_position=last_position,
                num_workers=int(config.num_workers),
            )
        )

    trainer = Trainer(
        accelerator=accelerator,
        backbone=backbone,
        denoiser=accelerator.prepare_model(backbone.denoiser) if accelerator.num_processes > 1 else backbone.denoiser,
        objective=build_checked("objective", config.objective),
        optimizer=optimizer,
        schedule=build_checked("schedule", config.schedule),
        batches=batches,
        num_steps=int(config.num_steps),
        global_batch=int(config.global_batch),
        accumulation=accumulation,
        seed=int(config.seed),
        log_every=int(config.log_every),
        max_grad_norm=config.max_grad_norm,
        average=average,
    )
    return _run(config, trainer, store, hooks, start, folder, stop)


def _run(
    config: DictConfig,
    trainer: Trainer,
    store: CheckpointStore,
    hooks: Sequence[EvalHook],
    start: Progress,
    folder: Path,
    stop: StopFlag,
) -> list[EvalReport]:
    is_main = trainer.accelerator.is_main_process
    tracker: Tracker = build_checked("tracker", config.tracker) if is_main else NoTracker()
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    tracker.start(folder, str(config.run_name), {str(key): value for key, value in plain.items()})
    metrics_file = MetricsFile(folder / "metrics.jsonl")
    if is_main:
        metrics_file.rewind(start.step)
    bar = ProgressBar(trainer.num_steps, start.step, trainer.global_batch, is_main=is_main)
    policy = Policy(
        run_name=str(config.run_name),
        num_steps=trainer.num_steps,
        save_every=int(config.checkpoint.every),
        keep=int(config.checkpoint.keep),
        best_metric=config.best_metric,
        facts=_facts(config),
    )
    events = RunEvents(
        policy=policy,
        trainer=trainer,
        folder=folder,
        base_cache=Path(str(config.output_root)) / "base_cache",
        store=store,
        hooks=hooks,
        metrics_file=metrics_file,
        tracker=tracker,
        bar=bar,
        stop=stop,
        reports=[report for hook in hooks for report in hook.finished_reports(folder, start.step)],
    )
    exit_code = 1
    summary: dict[str, Any] = {}
    try:
        with bar:
            fit(trainer, events, start)
        if is_main:
            summary = dict(events.write_results())
        exit_code = 0
    finally:
        tracker.finish(_tracker_summary(summary), exit_code)
    return events.reports


def _facts(config: DictConfig) -> dict[str, str]:
    """Returns what a reader of the report wants to know of the run first."""
    optimizer = config.optimizer
    return {
        "base": str(config.backbone.weights),
        "data": str(config.data.get("path") or config.data["_target_"]),
        "adapter": f"LoRA rank {config.adapter.rank}, {config.adapter.preset or 'own targets'}",
        "optimizer": f"{str(optimizer['_target_']).rsplit('.', 1)[-1]}, lr {optimizer.get('lr')}",
        "training": f"{config.num_steps} steps of {config.global_batch} samples, seed {config.seed}",
    }


def _check_levels(config: DictConfig, dataset: EditDataset) -> None:
    lacking = [
        name for name, weight in config.levels.items() if weight > 0 and PromptLevel(str(name)) not in dataset.levels
    ]
    if lacking:
        has = ", ".join(sorted(dataset.levels))
        raise ConfigError(f"levels asks for {', '.join(map(str, lacking))} prompts, but the data has only: {has}.")


def _check_same_config(accelerator: Accelerator, config: DictConfig) -> None:
    """Refuses ranks that were started with different settings."""
    mine = OmegaConf.to_yaml(config, resolve=True)
    theirs = [mine]
    if accelerator.num_processes > 1:
        broadcast_object_list(theirs, from_process=0)
    if theirs[0] != mine:
        raise ConfigError(
            f"Rank {accelerator.process_index} was started with another config than rank 0. "
            f"Start all ranks with the same overrides."
        )


def _tracker_summary(summary: dict[str, Any]) -> dict[str, float]:
    newest = summary.get("newest")
    if not newest:
        return {}
    return {key: value["tuned"] for key, value in newest["metrics"].items() if value["tuned"] is not None}
