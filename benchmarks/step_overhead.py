"""Measures what the training loop costs beside the forward, backward and update that any loop must make.

    python -m benchmarks.step_overhead [--rounds 8] [--steps 10]

A Kontext of the real class, 36 M parameters in float32, LoRA of rank 16, pairs of 128x128 read from the encoded
cache; one thread on the CPU. In one process, over the same modules, blocks of steps take turns in random order: those
of ``loop.fit`` as a run makes them (loader, cache, noise, objective, checks, a line of metrics.jsonl every ten steps),
and those of a bare loop that has every tensor for the transformer at hand: forward, mean squared error, backward,
clip_grad_norm_, AdamW, zero_grad. The ratios are of a round's two blocks. Peaks are of the bytes that operators make
and of resident memory, each of a block of its own.
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.results import Result, add_json_option, report, spread_of
from physedit.data_loaders.loader import Share
from physedit.models.backbone import Backbone, Conditioning, conditioning_of
from physedit.models.estimating.tracker import LiveBytes
from physedit.models.latents import pack
from physedit.models.random_tiny import build_random_tiny
from physedit.train import sft
from physedit.train.asking import Asking, Pace
from physedit.train.assemble import add_lora, build_checked, start_processes, write_scenes
from physedit.train.checkpoint import CheckpointStore
from physedit.train.compose import compose_config
from physedit.train.encode import encoded_rows
from physedit.train.events import Policy, RunEvents
from physedit.train.hook_runs import HookRunner
from physedit.train.late import LateReports
from physedit.train.loop import Trainer, fit
from physedit.train.metrics_file import MetricsFile
from physedit.train.optim import build_optimizer
from physedit.train.order import build_plan
from physedit.train.processes import Processes
from physedit.train.progress import ProgressBar
from physedit.train.rng import draw
from physedit.train.signals import RequestFiles, StopFlag
from physedit.train.state import Progress, trainable
from physedit.train.summary import best_rule
from physedit.train.tracker import NoTracker

SIDE_PX = 128
NUM_SAMPLES = 8  # of the bare loop, in turns
MOST_TIME, MOST_MEMORY = 1.03, 1.05
FOREVER = 10**9


def main() -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    add_json_option(parser)
    asked = parser.parse_args()
    found = results(asked.rounds, asked.steps)
    for each in found:
        print(f"{each.name}: {each.value:.4g} {each.unit} {each.target} ({each.spread})")
    report(found, asked.json)
    return 0 if all(each.is_met is not False for each in found) else 1


def results(num_rounds: int = 8, num_steps: int = 10) -> list[Result]:
    """Returns what a step of the loop takes over one of the bare loop, in time and in memory."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pair = build(Path(folder))
        times = timed(pair, num_rounds, num_steps)
        peaks = {name: peak_bytes(pair, block, 2) for name, block in pair.blocks.items()}
        resident = {name: [peak_rss(partial(block, 2)) for _ in range(3)] for name, block in pair.blocks.items()}
    what = "a training step over one of a bare loop, Kontext of 36 M parameters"
    found = []
    for kind, target in (("CPU time", f"<= {MOST_TIME}"), ("time", "")):  # the clock also counts what others compute
        of_kind = {name: [each[kind] for each in measured] for name, measured in times.items()}
        ratios = [ours / bare for ours, bare in zip(of_kind["fit"], of_kind["bare"], strict=True)]
        spread = spread_of(ratios, f"rounds of {num_steps} steps")
        found.append(Result(f"{kind} of {what}", statistics.median(ratios), "", target, spread))
        bare_ms = [1e3 * each for each in of_kind["bare"]]
        spread = spread_of(bare_ms, "rounds")
        found.append(Result(f"{kind} of a step of the bare loop", statistics.median(bare_ms), "ms", "", spread))
    ratio = peaks["fit"] / peaks["bare"]
    counted = f"{peaks['fit'] / 2**20:.1f} over {peaks['bare'] / 2**20:.1f} MiB"
    found.append(Result(f"peak of tensors made in {what}", ratio, "", f"<= {MOST_MEMORY}", counted))
    least = {name: min(values) for name, values in resident.items()}
    seen = f"{least['fit'] / 2**20:.0f} over {least['bare'] / 2**20:.0f} MiB, least of 3"
    found.append(
        Result(f"peak of resident memory in {what}", least["fit"] / least["bare"], "", f"<= {MOST_MEMORY}", seen)
    )
    return found


@dataclass(frozen=True)
class Pair:
    """Two ways to train one module: a block of either makes so many steps."""

    blocks: dict[str, Callable[[int], None]]
    lasting: Callable[[], list[Tensor]]
    """What lives between steps."""


def build(folder: Path) -> Pair:
    """Builds the editor, its cache, the run's trainer and the bare loop over the same denoiser."""
    config = config_of(folder, write_pipeline(folder / "pipeline"))
    accelerator = start_processes(config)
    team = sft.Team(accelerator, Processes(1))
    backbone: Backbone = build_checked("backbone", config.backbone)
    adapter_format = add_lora(backbone, config)
    write_scenes(config)
    dataset = build_checked("data", config.data)
    plan = build_plan(config, team.processes, backbone, dataset)
    encoded = encoded_rows(config, team.processes, backbone, dataset, plan, stop=StopFlag())
    trainer = sft.build_trainer(config, team, backbone, dataset, plan=plan, share=Share(1), encoded=encoded)
    store = CheckpointStore(folder / "checkpoints", backbone, adapter_format, "")
    run = Run(trainer, events_of(config, trainer, store, folder))
    optimizer = build_optimizer(config.optimizer, trainable(backbone.denoiser).values())
    bare = BareLoop(backbone.denoiser, optimizer, float(config.max_grad_norm), inputs_of(trainer))
    own: Any = trainer.engine  # its optimizer is nobody else's business

    def lasting() -> list[Tensor]:
        kept = [*backbone.denoiser.parameters(), *backbone.denoiser.buffers(), *bare.tensors()]
        states = [*own._optimizer.state.values(), *optimizer.state.values()]
        return [*kept, *(value for state in states for value in state.values() if isinstance(value, Tensor))]

    return Pair({"fit": run.block, "bare": bare.block}, lasting)


def write_pipeline(folder: Path) -> Path:
    """Writes a random pipeline whose transformer has 36 M parameters and the released one's heads."""
    pipeline = build_random_tiny(0)
    pipeline.transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=pipeline.transformer.config.in_channels,
        num_layers=4,
        num_single_layers=6,
        attention_head_dim=128,
        num_attention_heads=3,
        joint_attention_dim=pipeline.transformer.config.joint_attention_dim,
        pooled_projection_dim=pipeline.transformer.config.pooled_projection_dim,
        guidance_embeds=True,
        axes_dims_rope=(16, 56, 56),
    )
    num_parameters = sum(each.numel() for each in pipeline.transformer.parameters())
    print(f"{type(pipeline.transformer).__name__} of {num_parameters / 1e6:.1f} M parameters")
    pipeline.save_pretrained(folder)
    return folder


def config_of(folder: Path, weights: Path) -> DictConfig:
    """Returns the config of a run on the CPU with the encoded cache."""
    given = [
        "experiment=smoke", "tracker=none", "eval=none", "device=cpu", "encode=cached",
        f"encode.folder={folder / 'cache'}",
        f"output_root={folder}", f"scenes.folder={folder / 'scenes'}", f"backbone.weights={weights}",
        f"backbone.area_px={SIDE_PX**2}", "micro_batch=1", "global_batch=1", f"num_steps={FOREVER}", "log_every=10",
        "adapter.rank=16", "num_workers=0",
    ]  # fmt: skip
    return compose_config(given)


def events_of(config: DictConfig, trainer: Trainer, store: CheckpointStore, folder: Path) -> RunEvents:
    """Returns a run's events, without hooks and without a checkpoint at a block's end."""
    policy = Policy(
        run_name="overhead", num_steps=FOREVER, save_every=0, keep=1, keep_best=0, best=best_rule(config),
        stops_at_eval_failure=False, facts={},
    )  # fmt: skip
    bar = ProgressBar(FOREVER, 0, trainer.global_batch, is_main=True)
    asking = Asking(trainer.processes, Pace(trainer.processes), StopFlag(), RequestFiles(folder))
    events = RunEvents(
        policy=policy, trainer=trainer, folder=folder, store=store, hooks=[], tracker=NoTracker(), bar=bar,
        asking=asking, runner=HookRunner(trainer, folder, folder / "base", asking, bar.hook), uploads=None,
        metrics_file=MetricsFile(folder / "metrics.jsonl"), late=LateReports(folder, folder / "base", bar.late),
    )  # fmt: skip
    events.save = lambda progress: None  # type: ignore[method-assign]  # noqa: ARG005
    return events


class Run:
    """A run of the loop, some steps at a time."""

    def __init__(self, trainer: Trainer, events: RunEvents) -> None:
        self._trainer, self._events = trainer, events
        self._progress = Progress()
        batches = trainer.batches(0)
        trainer.batches = lambda _position: batches  # each block goes on with the loader of the one before

    def block(self, num_steps: int) -> None:
        """Makes so many steps more."""
        self._trainer.num_steps = self._progress.step + num_steps
        self._progress = fit(self._trainer, self._events, self._progress)


@dataclass(frozen=True)
class Inputs:
    """All that the transformer is given for a sample, and what it is to predict, ``[1, N, 4C]``."""

    named: dict[str, Any]
    velocity: Tensor


def inputs_of(trainer: Trainer) -> list[Inputs]:
    """Returns the inputs that the loop would make for the first samples."""
    calls: list[dict[str, Any]] = []
    backbone, objective, found = trainer.backbone, trainer.objective, []

    def note(_module: nn.Module, _inputs: object, named: dict[str, Any]) -> None:
        calls.append(named)

    noting = backbone.denoiser.register_forward_pre_hook(note, with_kwargs=True)
    for positioned in itertools.islice(trainer.batches(0), NUM_SAMPLES):
        given = conditioning_of(backbone, positioned.batch, trainer.accelerator.device)
        draws = draw(trainer.seed, positioned.positions, given.target)
        with torch.no_grad():
            objective.loss(partial(velocity, backbone, given), given, draws)
        found.append(Inputs(calls.pop(), pack(draws.noise - given.target)))
    noting.remove()
    return found


def velocity(backbone: Backbone, given: Conditioning, noisy: Tensor, sigma: Tensor) -> Tensor:
    """Returns what the denoiser predicts."""
    return backbone.velocity(backbone.denoiser, noisy, sigma, given)


class BareLoop:
    """Forward, backward and update, and nothing else."""

    def __init__(self, denoiser: nn.Module, optimizer: Optimizer, max_norm: float, inputs: Sequence[Inputs]) -> None:
        self._denoiser, self._optimizer, self._max_norm = denoiser, optimizer, max_norm
        self._parameters = list(trainable(denoiser).values())
        self._inputs, self._turns = inputs, itertools.cycle(inputs)

    def block(self, num_steps: int) -> None:
        """Makes so many steps."""
        self._denoiser.train()
        for _ in range(num_steps):
            given = next(self._turns)
            predicted = self._denoiser(**given.named)[0][:, : given.velocity.shape[1]]
            F.mse_loss(predicted, given.velocity).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> list[Tensor]:
        """Returns what it has at hand."""
        values = [value for each in self._inputs for value in (*each.named.values(), each.velocity)]
        return [value for value in values if isinstance(value, Tensor)]


def timed(pair: Pair, num_rounds: int, num_steps: int) -> dict[str, list[dict[str, float]]]:
    """Returns seconds a step of each block, of the clock and of the CPU, a round each; a first block is not counted."""
    order = random.Random(0)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in pair.blocks}
    for number in range(num_rounds + 1):
        for name in order.sample(sorted(pair.blocks), len(pair.blocks)):
            clock, cpu = time.perf_counter(), time.process_time()
            pair.blocks[name](num_steps)
            taken = {"time": time.perf_counter() - clock, "CPU time": time.process_time() - cpu}
            if number:
                found[name].append({kind: seconds / num_steps for kind, seconds in taken.items()})
                print(
                    f"round {number}, {name}: "
                    + ", ".join(f"{1e3 * s / num_steps:.1f} ms {k}" for k, s in taken.items())
                )
    return found


def peak_bytes(pair: Pair, block: Callable[[int], None], num_steps: int) -> int:
    """Returns the most bytes of tensors that a block has made and not let go, at any time in it."""
    counter = LiveBytes()
    counter.leave_out(pair.lasting())
    with counter:
        block(num_steps)
    return max(counter.timeline)


def peak_rss(action: Callable[[], None]) -> int:
    """Returns the most bytes of this process that were in memory during ``action``. Linux alone."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    action()
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    sys.exit(main())
