"""Supervised fine-tuning of an editor's adapter: builds the parts, runs the loop, writes the results."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from omegaconf import DictConfig, OmegaConf

from physedit.data_loaders.encoded import EncodedRows
from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.sample import EditDataset
from physedit.data_loaders.slots import RunPlan
from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import EvalHook, EvalReport
from physedit.models.backbone import Backbone
from physedit.models.quantization import keep_from_broadcast
from physedit.train.asking import Asking, Pace
from physedit.train.assemble import (
    add_lora,
    build_checked,
    build_engine,
    build_hooks,
    cut_denoiser,
    start_processes,
    write_scenes,
)
from physedit.train.checkpoint import CheckpointStore
from physedit.train.config import ConfigError
from physedit.train.dropped import DroppedRows
from physedit.train.encode import encoded_rows
from physedit.train.events import Policy, RunEvents
from physedit.train.failures import read_failures
from physedit.train.first_batch import FIRST_BATCH_FILE, write_first_batch
from physedit.train.hook_runs import HookRunner
from physedit.train.late import LateReports
from physedit.train.loop import Trainer, fit
from physedit.train.metrics_file import MetricsFile
from physedit.train.order import (
    accepted_rows,
    build_plan,
    check_same_data,
    check_same_plan,
    data_files,
    unusable_rows,
    write_plan,
)
from physedit.train.preflight import check_levels, check_references
from physedit.train.processes import Processes
from physedit.train.progress import ProgressBar
from physedit.train.results import best_numbers, facts_of, newest_numbers
from physedit.train.rules import batches_per_step
from physedit.train.run_folder import (
    METRICS_FILE,
    base_cache_of,
    claim_run_folder,
    run_folder_of,
    set_records_aside,
)
from physedit.train.signals import RequestFiles, StopFlag, Stopped
from physedit.train.state import AdapterAverage, Progress
from physedit.train.summary import best_rule
from physedit.train.tracker import NoTracker, Tracker
from physedit.train.upload import Uploads

logger = logging.getLogger(__name__)

ENGINE_FILE = "engine.json"
"""In the run folder: which engine really ran."""


def train(config: DictConfig, overrides: Sequence[str], command: str, stop: StopFlag) -> list[EvalReport]:
    """Runs or resumes the training run of ``config``; returns the reports of its hooks.

    Every process of the launch calls it with the same arguments, after ``preflight.check``.

    Raises:
        ValueError: input that cannot be used, found before the first step.
        NonFiniteLoss: the loss is not finite.
        Stopped: a signal arrived; the run is saved.
    """
    accelerator = start_processes(config)
    team = Team(accelerator, Processes(accelerator.num_processes, accelerator.process_index))
    with team.processes.until_the_end():
        return _train(config, overrides, command, stop, team)


@dataclass(frozen=True, slots=True)
class Team:
    """The processes of a launch: their devices and collectives, and their agreement."""

    accelerator: Accelerator
    processes: Processes


def _train(config: DictConfig, overrides: Sequence[str], command: str, stop: StopFlag, team: Team) -> list[EvalReport]:
    accelerator, processes = team.accelerator, team.processes
    _check_same_config(accelerator, config)
    accumulation = batches_per_step(config, accelerator.num_processes)
    share = Share(int(config.micro_batch), accumulation, accelerator.process_index, accelerator.num_processes)
    backbone: Backbone = build_checked("backbone", config.backbone)
    adapter_format = add_lora(backbone, config)
    with processes.rank_0_first():
        write_scenes(config)
    dataset: EditDataset = build_checked("data", config.data)
    check_levels(config, dataset)
    check_references(backbone.max_sources, dataset)
    hooks = build_hooks(config)
    for hook in hooks:
        hook.check()

    processes.wait()  # some may have read the base sooner
    cut_denoiser(config, accelerator, backbone.denoiser, share)
    backbone.to(accelerator.device)
    plan = build_plan(config, processes, backbone, dataset)
    files, dataset = data_files(dataset), accepted_rows(config, dataset, plan)
    folder = run_folder_of(config)
    lock = claim_run_folder(config, overrides, command, accelerator) if accelerator.is_main_process else None
    processes.wait()
    store = CheckpointStore(folder / "checkpoints", backbone, adapter_format, OmegaConf.to_yaml(config, resolve=True))
    try:
        encoded = None
        if config.encode.mode == "cached":
            encoded = encoded_rows(config, processes, backbone, dataset, plan, stop=stop)
        trainer = build_trainer(config, team, backbone, dataset, plan=plan, share=share, encoded=encoded)
        start = restore(trainer, store)
        check_same_plan(plan, folder, start.step)
        check_same_data(files, config, folder, start.step, processes)
        if accelerator.is_main_process:
            write_json(folder / ENGINE_FILE, asdict(trainer.engine.facts()))
            write_plan(plan, files, folder)
            if start.step == 0:
                write_first_batch(folder / FIRST_BATCH_FILE, dataset, plan, share.global_batch)
        trainer.dropped.start(folder / "dropped.jsonl", start.step, accelerator)
        trainer.dropped.add(unusable_rows(plan, dataset))
        trainer.dropped.add([(0, row) for row in encoded.dropped] if encoded is not None else [])
        return _run(config, trainer, store, hooks, start, stop)
    finally:
        if lock is not None:
            lock.close()
        accelerator.end_training()


def build_trainer(
    config: DictConfig,
    team: Team,
    backbone: Backbone,
    dataset: EditDataset,
    *,
    plan: RunPlan,
    share: Share,
    encoded: EncodedRows | None = None,
) -> Trainer:
    """Returns everything the loop uses, at its start; the adapter is in place and on its device.

    ``encoded`` reads encoded pairs in place of the data set's pictures.
    """
    denoiser = backbone.denoiser
    keep_from_broadcast(denoiser)

    def batches(position: int) -> Iterator[PositionedBatch]:
        return iter(
            TrainingBatches(
                dataset,
                plan,
                share=share,
                start_position=position,
                stop_position=int(config.num_steps) * int(config.global_batch),
                num_workers=int(config.num_workers),
                encoded=encoded,
            )
        )

    engine = build_engine(config, team.accelerator, denoiser, share)
    return Trainer(
        accelerator=team.accelerator,
        processes=team.processes,
        backbone=backbone,
        engine=engine,
        objective=build_checked("objective", config.objective),
        schedule=build_checked("schedule", config.schedule),
        batches=batches,
        num_steps=int(config.num_steps),
        global_batch=int(config.global_batch),
        accumulation=share.accumulation,
        seed=int(config.seed),
        has_dropout=config.adapter.dropout > 0,
        log_every=int(config.log_every),
        average=None if config.ema_decay is None else AdapterAverage(engine.adapter(), config.ema_decay),
        dropped=DroppedRows(plan.num_rows, float(config.max_dropped_share)),
    )


def restore(trainer: Trainer, store: CheckpointStore) -> Progress:
    """Puts the newest checkpoint, if there is one, into the trainer; returns where the run goes on. All ranks call it.

    Raises:
        CheckpointIncomplete: there are checkpoints, but none that can be used.
        ConfigError: the checkpoint is of another adapter.
    """
    if trainer.accelerator.is_main_process:
        store.tidy()
    trainer.processes.wait()
    newest = store.newest()
    if newest is None:
        return Progress()
    snapshot = store.load(newest)
    trainer.engine.load_adapter(snapshot.live)
    trainer.engine.restore_optimizer(snapshot.optimizer)
    if trainer.average is not None:
        trainer.average.load(snapshot.adapter)
    trainer.processes.wait()
    if trainer.accelerator.is_main_process:
        store.set_aside_after(newest)
    logger.info("Resuming from %s.", newest)
    return snapshot.progress


def _run(
    config: DictConfig,
    trainer: Trainer,
    store: CheckpointStore,
    hooks: Sequence[EvalHook],
    start: Progress,
    stop: StopFlag,
) -> list[EvalReport]:
    folder, is_main = run_folder_of(config), trainer.accelerator.is_main_process
    tracker: Tracker = build_checked("tracker", config.tracker) if is_main else NoTracker()
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    tracker.start(folder, str(config.run_name), {str(key): value for key, value in plain.items()})
    bar = ProgressBar(trainer.num_steps, start.step, trainer.global_batch, is_main=is_main)
    asking = Asking(trainer.processes, Pace(trainer.processes), stop, RequestFiles(folder) if is_main else None)
    events = RunEvents(
        policy=Policy(
            run_name=str(config.run_name),
            num_steps=trainer.num_steps,
            save_every=int(config.checkpoint.every),
            keep=int(config.checkpoint.keep),
            keep_best=int(config.checkpoint.keep_best),
            best=best_rule(config),
            stops_at_eval_failure=config.eval_failures == "stop",
            facts=facts_of(config),
        ),
        trainer=trainer,
        folder=folder,
        store=store,
        hooks=hooks,
        runner=HookRunner(trainer, folder, base_cache_of(config), asking, bar.hook),
        metrics_file=MetricsFile(folder / METRICS_FILE),
        tracker=tracker,
        bar=bar,
        asking=asking,
        uploads=Uploads(str(target)) if is_main and (target := config.checkpoint.upload_to) is not None else None,
        late=LateReports(folder, base_cache_of(config), bar.late),
        reports=[report for hook in hooks for report in hook.finished_reports(folder, start.step)],
        failures=read_failures(folder, start.step),
    )
    if is_main:
        if start.step == 0:
            set_records_aside(folder)
        events.metrics_file.rewind(start.step, [hook.name for hook in events.due(start.step)])
        events.go_on(start.step)
    exit_code = 1
    try:
        with bar:
            fit(trainer, events, start)
            events.finish()
        exit_code = 0
    except Stopped:
        exit_code = 0  # a stopped run has not failed: it goes on
        raise
    finally:
        events.late.close()
        summary = dict(events.write_results()) if is_main and exit_code == 0 else {}
        tracker.finish(newest_numbers(summary) | best_numbers(summary), exit_code)
        if events.uploads is not None:
            events.uploads.finish()
    return events.reports


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
