"""Measures checkpoints under each engine: size, seconds to save, seconds to resume.

    python benchmarks/checkpoints.py [/tmp/checkpoints] [--rank 2048]

One process, then two with DDP, then two with ZeRO-1, 2 and 3, on the CPU over gloo; the tiny FLUX with random weights
and an adapter of ``--rank``, whose size is what matters here. Prints a line of JSON per engine: bytes of the checkpoint
over bytes of the adapter (float32), and the median of five saves (gather, write, sync, hash) and of five resumes (read,
check the hashes, put back). Without a folder everything goes to a temporary one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results import Result, add_json_option, report

if TYPE_CHECKING:
    from physedit.train.sft import Team

NUM_TIMES = 5
ROOT = Path(__file__).resolve().parent.parent
TWO = ("launch", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
DDP = (*TWO, "--multi_gpu", "--num_processes", "2")
ZERO = ("launch", "--config_file", "launch/accelerate/cpu_zero2.yaml", "--main_process_port", "0")


def main() -> None:
    """Starts a process or a launch for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rank", type=int, default=2048)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_json_option(parser)
    asked = parser.parse_args()
    if asked.worker:
        measure_all(asked.folder, asked.rank)
        return
    with tempfile.TemporaryDirectory() as temporary:
        lines = launch_all((asked.folder or Path(temporary)).absolute(), asked.rank)
    report([result for line in lines for result in results_of(line)], asked.json)


def launch_all(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Measures every engine, and returns the lines that were printed."""
    accelerate = str(Path(sys.executable).parent / "accelerate")
    arguments = [str(Path(__file__).resolve()), str(folder), "--rank", str(rank), "--worker"]
    common = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    lines: list[dict[str, Any]] = []
    for command, more in (
        ([sys.executable], {}),
        ([accelerate, *DDP], {"ACCELERATE_USE_CPU": "true"}),
        ([accelerate, *ZERO], {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu"}),
    ):
        done = subprocess.run(
            [*command, *arguments], env=common | more, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        for text in done.stdout.splitlines():
            print(text, flush=True)
            lines += [json.loads(text)] if text.startswith('{"engine"') else []
    return lines


def results_of(line: dict[str, Any]) -> list[Result]:
    """Returns what was measured of an engine."""
    name, adapter = line["engine"], f"{line['adapter_mb']} MB adapter"
    return [
        Result(f"checkpoint over adapter, {name}, {adapter}", line["size_over_adapter"], "times", "<= 3.1"),
        Result(f"saving, {name}", line["save_s"], "s", "", f"median of {NUM_TIMES}"),
        Result(f"resuming, {name}", line["resume_s"], "s", "", f"median of {NUM_TIMES}"),
    ]


def measure_all(folder: Path, rank: int) -> None:
    """Measures the engines of this launch; every process calls it."""
    from physedit.train import zero
    from physedit.train.assemble import start_processes
    from physedit.train.compose import compose_config
    from physedit.train.processes import Processes
    from physedit.train.sft import Team

    given = ("experiment=smoke", "tracker=none", f"output_root={folder}", f"scenes.folder={folder}/world")
    config = compose_config([*given, f"adapter.rank={rank}", "num_steps=1"])
    accelerator = start_processes(config)
    team = Team(accelerator, Processes(accelerator.num_processes, accelerator.process_index))
    for stage in zero.STAGES if zero.asked_for() else (0,):
        if stage:
            accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"] = {
                "stage": stage, "stage3_param_persistence_threshold": 0,
            }  # fmt: skip
        measure(config, team, folder)
    team.processes.close()


def measure(config: Any, team: "Team", folder: Path) -> None:
    """Trains a step, then saves and resumes."""
    from physedit.data_loaders.loader import Share
    from physedit.train import sft
    from physedit.train.assemble import add_lora, build_checked, write_scenes
    from physedit.train.checkpoint import CheckpointStore, Snapshot
    from physedit.train.loop import accumulate
    from physedit.train.order import build_plan
    from physedit.train.rules import batches_per_step
    from physedit.train.state import Progress

    accelerator, processes = team.accelerator, team.processes
    with processes.rank_0_first():
        write_scenes(config)
    backbone = build_checked("backbone", config.backbone)
    adapter_format = add_lora(backbone, config)
    dataset = build_checked("data", config.data)
    world = accelerator.num_processes
    share = Share(int(config.micro_batch), batches_per_step(config, world), accelerator.process_index, world)
    plan = build_plan(config, processes, backbone, dataset)
    trainer = sft.build_trainer(config, team, backbone, dataset, plan=plan, share=share)
    accumulate(trainer, trainer.batches(0))
    trainer.engine.step()
    facts = trainer.engine.facts()
    name = f"zero{facts.zero_stage}x{world}" if facts.zero_stage else "single" if world == 1 else f"ddp{world}"
    store = CheckpointStore(folder / name, backbone, adapter_format, "seed: 0\n")

    def save() -> None:
        live = {key: value.cpu() for key, value in trainer.engine.adapter().items()}
        snapshot = Snapshot(Progress(1, 4), live, live, trainer.engine.optimizer_tensors())
        processes.together(lambda: store.save(snapshot) if accelerator.is_main_process else None)

    def resume() -> None:
        snapshot = store.load(store.folder / "step_00000001")
        trainer.engine.load_adapter(snapshot.live)
        trainer.engine.restore_optimizer(snapshot.optimizer)
        processes.wait()

    line = {"engine": name, "save_s": median_s(save), "resume_s": median_s(resume)}
    if accelerator.is_main_process:
        adapter_bytes = sum(4 * value.numel() for value in store.load(store.folder / "step_00000001").live.values())
        size = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
        line |= {"adapter_mb": round(adapter_bytes / 1e6, 1), "size_over_adapter": round(size / adapter_bytes, 3)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def median_s(work: Callable[[], None]) -> float:
    """Returns the median of ``NUM_TIMES`` runs."""
    seconds = []
    for _ in range(NUM_TIMES):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return round(statistics.median(seconds), 3)


if __name__ == "__main__":
    main()
