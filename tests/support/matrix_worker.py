"""One process of the checkpoint matrix: each engine of a launch saves, and resumes from what every engine saved.

    python tests/support/matrix_worker.py ROOT WORLD                    (`accelerate launch` for several processes)

The run is that of the smoke experiment with an average, clipping at every step and accumulation. All engines start from
``START`` steps that a single process trained. Each goes on to ``SAVED`` and saves, and on to ``END``: that is its
uninterrupted run. Then each resumes from every other's checkpoint of ``SAVED`` and goes on to ``END`` again.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tests.support.runs import smoke_overrides
from torch import Tensor

from physedit.data_loaders.loader import Share
from physedit.eval_hooks.files import write_json
from physedit.eval_hooks.hook import weights_digest
from physedit.models.backbone import Backbone
from physedit.train import loop, sft
from physedit.train.assemble import add_lora, build_checked, start_processes
from physedit.train.checkpoint import CheckpointStore, Snapshot, step_name
from physedit.train.compose import compose_config
from physedit.train.loop import NonFiniteLoss, Trainer, fit
from physedit.train.objective import LossTerms
from physedit.train.order import build_plan
from physedit.train.processes import Processes
from physedit.train.rules import batches_per_step
from physedit.train.signals import Request
from physedit.train.state import Progress
from physedit.train.zero import asked_for

START, SAVED, END = 2, 4, 7
MODES = {
    "single": ("single", "float32"), "ddp2": ("ddp", "float32"),
    "zero1x2": ("zero", "float32"), "zero2x2": ("zero", "float32"), "zero3x2": ("zero", "float32"),
    "zero2x2_offload": ("zero", "float32"), "zero3x2_offload": ("zero", "float32"),
    "single_bf16": ("single", "bfloat16"), "zero3x2_bf16": ("zero", "bfloat16"),
}  # fmt: skip
"""By name: the launch that has it, and the dtype of the base and of the adapter's products."""
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
SECONDS_TO_WAIT = 240


@dataclass
class Recorder:
    """The loop's events: keeps losses, and what is to be saved."""

    trainer: Trainer
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    snapshot: Snapshot | None = None

    def request(self) -> Request:
        return Request.NONE

    def save_is_due(self, _step: int) -> bool:
        return False

    def save(self, progress: Progress) -> None:
        self.snapshot = snapshot_of(self.trainer, progress)

    def evaluate(self, step: int) -> None:
        """There is no hook."""

    def log(self, _step: int, metrics: dict[str, float], _num_samples: int, _seconds: float) -> None:
        self.losses.append(metrics["train/loss"])
        self.norms.append(metrics["train/grad_norm"])

    def advance(self, step: int) -> None:
        """There is no bar."""


def snapshot_of(trainer: Trainer, progress: Progress) -> Snapshot:
    """Returns copies of all that a checkpoint holds; every rank calls it, and rank 0 has it all."""
    live = {name: value.detach().cpu().clone() for name, value in trainer.engine.adapter().items()}
    assert trainer.average is not None
    average = {name: value.cpu().clone() for name, value in trainer.average.values.items()}
    optimizer = {name: value.clone() for name, value in trainer.engine.optimizer_tensors().items()}
    return Snapshot(progress, average, live, optimizer)


def tensors_of(snapshot: Snapshot) -> dict[str, Tensor]:
    parts = {"adapter": snapshot.adapter, "live": snapshot.live, "optimizer": snapshot.optimizer}
    return {f"{part}/{name}": value for part, tensors in parts.items() for name, value in tensors.items()}


def config_of(root: Path, world: Path, dtype: str) -> DictConfig:
    more = (
        "log_every=1", "micro_batch=1", "ema_decay=0.9", "max_grad_norm=0.02", "optimizer.weight_decay=0.01",
        f"num_steps={END + 1}", f"backbone.dtype={dtype}", f"adapter.compute_dtype={dtype}",
    )  # fmt: skip
    return compose_config(smoke_overrides(world, root / "runs", "matrix", more))


def zero_config(mode: str) -> dict[str, Any]:
    """Returns DeepSpeed's part for a mode such as ``zero3x2_offload``; nothing stays whole under ZeRO-3."""
    stage = int(mode[4])
    zero: dict[str, Any] = {"stage": stage} | (OFFLOAD if mode.endswith("_offload") else {})
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": False}
    return zero


def build(config: DictConfig, team: sft.Team, root: Path, mode: str) -> tuple[Trainer, CheckpointStore]:
    if mode.startswith("zero"):
        team.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"] = zero_config(mode)
    backbone: Backbone = build_checked("backbone", config.backbone)
    adapter_format = add_lora(backbone, config)
    dataset = build_checked("data", config.data)
    plan = build_plan(config, team.processes, backbone, dataset)
    world = team.accelerator.num_processes
    share = Share(int(config.micro_batch), batches_per_step(config, world), team.accelerator.process_index, world)
    trainer = sft.build_trainer(config, team, backbone, dataset, plan=plan, share=share)
    return trainer, CheckpointStore(root / "saved" / mode, backbone, adapter_format, "seed: 0\n")


def go_on(trainer: Trainer, start: Progress, last_step: int) -> Recorder:
    trainer.num_steps = last_step
    events = Recorder(trainer)
    fit(trainer, events, start)
    return events


def put_back(trainer: Trainer, snapshot: Snapshot) -> None:
    trainer.engine.load_adapter(snapshot.live)
    trainer.engine.restore_optimizer(snapshot.optimizer)
    assert trainer.average is not None
    trainer.average.load(snapshot.adapter)


def save(config: DictConfig, team: sft.Team, root: Path, mode: str) -> tuple[Trainer, CheckpointStore]:
    """Saves under ``mode`` and makes its uninterrupted run."""
    trainer, store = build(config, team, root, mode)
    first = "single" if MODES[mode][1] == "float32" else "single_bf16"
    is_main = team.accelerator.is_main_process
    if mode == first:
        begun = go_on(trainer, Progress(), START).snapshot
        assert begun is not None
        store.save(begun)
        (store.folder / "begun").touch()
    else:
        begun = store.load(waited_for(root / "saved" / first, "begun") / step_name(START))
        put_back(trainer, begun)  # into an engine that has not made a step
    middle = go_on(trainer, begun.progress, SAVED)
    assert middle.snapshot is not None
    if is_main:
        store.save(middle.snapshot)
    whole = go_on(trainer, middle.snapshot.progress, END)
    if is_main:
        record(root, mode, "uninterrupted", trainer, whole, restored=True)
        (store.folder / "done").touch()
    return trainer, store


def resume(trainer: Trainer, store: CheckpointStore, root: Path, mode: str, source: str, *, is_main: bool) -> None:
    saved = store.load(waited_for(root / "saved" / source, "done") / step_name(SAVED))
    put_back(trainer, saved)
    found = snapshot_of(trainer, saved.progress)
    resumed = go_on(trainer, saved.progress, END)
    if is_main:
        restored = same(tensors_of(found), tensors_of(saved))
        record(root, mode, source, trainer, resumed, restored=restored)


def spoil(trainer: Trainer, start: Progress) -> dict[str, Any]:
    """Tries one more step with a loss that is no number on the last rank, and one whose gradient alone is none."""
    found: dict[str, Any] = {}
    forward = loop.forward
    is_last_rank = trainer.accelerator.is_last_process
    before = {name: value.clone() for name, value in trainer.engine.adapter().items()}
    for kind, factor in (("loss", float("nan") if is_last_rank else 1.0), ("gradient", 1e30)):
        loop.forward = partial(_scaled, forward, factor)
        try:
            go_on(trainer, start, start.step + 1)
            found[kind] = "an update was made"
        except NonFiniteLoss as error:
            found[kind] = str(error)
        finally:
            loop.forward = forward
            trainer.engine.denoiser.zero_grad()
        found[f"{kind} unchanged"] = same(before, trainer.engine.adapter())
    return found


def _scaled(forward: Any, factor: float, trainer: Trainer, positioned: Any) -> LossTerms:
    terms: LossTerms = forward(trainer, positioned)
    return LossTerms(terms.loss * factor, terms.per_sample * factor, terms.sigma)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def record(root: Path, mode: str, source: str, trainer: Trainer, events: Recorder, *, restored: bool) -> None:
    assert events.snapshot is not None
    tensors = tensors_of(events.snapshot)
    torch.save(tensors, root / f"{mode}.{source}.pt")
    write_json(
        root / f"{mode}.{source}.json",
        {
            "engine": asdict(trainer.engine.facts()),
            "restored": restored,
            "losses": events.losses,
            "norms": events.norms,
            "digest": weights_digest(tensors),
        },
    )


def waited_for(folder: Path, mark: str) -> Path:
    """Returns ``folder`` once another launch has left ``mark`` in it."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while not (folder / mark).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} has no {mark} after {SECONDS_TO_WAIT} s.")
        time.sleep(0.1)
    return folder


def main(root: Path, world: Path) -> None:
    launch = "single" if "WORLD_SIZE" not in os.environ else "zero" if asked_for() else "ddp"
    configs = {dtype: config_of(root, world, dtype) for dtype in ("float32", "bfloat16")}
    accelerator = start_processes(configs["float32"])
    team = sft.Team(accelerator, Processes(accelerator.num_processes, accelerator.process_index))
    own = {mode: dtype for mode, (owner, dtype) in MODES.items() if owner == launch}
    built = {mode: save(configs[dtype], team, root, mode) for mode, dtype in own.items()}
    for mode, (trainer, store) in built.items():
        for source, (_, dtype) in MODES.items():
            if dtype == own[mode]:
                resume(trainer, store, root, mode, source, is_main=accelerator.is_main_process)
    for mode, (trainer, _) in built.items():
        begun = Progress(step=END, position=END * trainer.global_batch)
        found = spoil(trainer, begun)
        if accelerator.is_main_process:
            write_json(root / f"{mode}.spoilt.json", found)
    team.processes.close()
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
