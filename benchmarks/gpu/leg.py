"""Trains with one setting for about a minute and notes every step: one process of ``benchmarks/gpu.sh``.

The run is the product's own: its config, backbone, adapter, loader, engine and loop. Only what the loop tells goes into
a file here instead of a run folder, so that no checkpoint is written.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from omegaconf import DictConfig

from physedit.data_loaders.loader import Share
from physedit.data_loaders.sample import EditDataset
from physedit.models.backbone import Backbone
from physedit.train.assemble import add_lora, build_checked, check_backbone, start_processes
from physedit.train.compose import compose_config
from physedit.train.loop import fit
from physedit.train.order import accepted_rows, build_plan
from physedit.train.processes import Processes
from physedit.train.rules import batches_per_step
from physedit.train.sft import Team, build_trainer
from physedit.train.signals import Request, Stopped
from physedit.train.state import Progress

MEASURED, OUT_OF_MEMORY = "measured", "out of memory"
ENOUGH_STEPS, ENOUGH_S = 20, 45.0
_MARGIN_S = 5.0
"""Of the leg's time, left to end in."""


@dataclass
class Record:
    """What a leg has done so far.

    Attributes:
        outcome: ``measured``, ``out of memory``; of a leg that was cut off, what it was before.
        built_s: from the start of the process until the first step.
        step_s: seconds of every step; the first, in which kernels are chosen, is no measurement.
        samples_a_step: the global batch.
        losses: of every step.
        allocated: most bytes of torch's tensors on the device since the editor was built; None on the CPU.
        reserved: most bytes that torch's allocator held.
        message: of what ended it.
    """

    outcome: str = "not begun"
    built_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    samples_a_step: int = 0
    losses: list[float] = field(default_factory=list)
    allocated: int | None = None
    reserved: int | None = None
    message: str = ""


class Recorder:
    """The loop's ``Events``: notes each step, and has the run stop once enough is known."""

    def __init__(self, record: Record, file: Path, *, started: float, limit_s: float) -> None:
        self._record, self._file = record, file
        self._started, self._limit_s = started, limit_s

    def request(self) -> Request:
        """Asks for the end when there are steps enough, or no time for one more."""
        steps = self._record.step_s
        if len(steps) < 2:
            return Request.NONE
        is_enough = len(steps) > ENOUGH_STEPS or sum(steps[1:]) > ENOUGH_S
        left = self._limit_s - _MARGIN_S - (time.monotonic() - self._started)
        return Request.STOP if is_enough or left < 2 * max(steps[1:]) else Request.NONE

    def save_is_due(self, step: int) -> bool:
        """Never."""
        return step < 0

    def save(self, progress: Progress) -> None:
        """Writes nothing."""

    def evaluate(self, step: int) -> None:
        """Evaluates nothing."""

    def log(self, step: int, metrics: dict[str, float], num_samples: int, seconds: float) -> None:  # noqa: ARG002
        """Notes the step; the loop has waited for the device."""
        record = self._record
        record.outcome, record.samples_a_step = MEASURED, num_samples
        record.step_s.append(seconds)
        record.losses.append(metrics["train/loss"])
        note_memory(record)
        write(record, self._file)

    def advance(self, step: int) -> None:
        """Shows nothing."""


def main() -> int:
    """Runs the leg; what happened is in the file."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    given = parser.parse_args()
    record = Record()
    write(record, given.json)
    try:
        measure(compose_config(given.overrides), record, given.json, started=started, limit_s=given.limit_s)
    except torch.OutOfMemoryError as error:
        record.outcome, record.message = OUT_OF_MEMORY, str(error).splitlines()[0]
        note_memory(record)
    write(record, given.json)
    return 0


def measure(config: DictConfig, record: Record, file: Path, *, started: float, limit_s: float) -> None:
    """Trains as ``sft.train`` does, on one device, until the recorder has enough."""
    check_backbone(config)
    accelerator = start_processes(config)
    team = Team(accelerator, Processes(1))
    with team.processes.until_the_end():
        backbone: Backbone = build_checked("backbone", config.backbone)
        add_lora(backbone, config)
        dataset: EditDataset = build_checked("data", config.data)
        backbone.to(accelerator.device)
        plan = build_plan(config, team.processes, backbone, dataset)
        dataset = accepted_rows(config, dataset, plan)
        share = Share(int(config.micro_batch), batches_per_step(config, 1), 0, 1)
        trainer = build_trainer(config, team, backbone, dataset, plan=plan, share=share)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        record.outcome, record.built_s = "built", time.monotonic() - started
        write(record, file)
        try:
            fit(trainer, Recorder(record, file, started=started, limit_s=limit_s), Progress())
        except Stopped:
            record.message = "stopped when enough was known"


def note_memory(record: Record) -> None:
    """Notes the peaks of the CUDA device; nothing where there is none."""
    if torch.cuda.is_available():
        record.allocated, record.reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def write(record: Record, file: Path) -> None:
    """Writes the record, whole or not at all."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    part.replace(file)


if __name__ == "__main__":
    sys.exit(main())
