"""Measures how long a run takes from the start of its process to the end of its first step, over its imports alone.

    python -m benchmarks.start_up [--rounds 5]

Processes of two kinds take turns: ``physedit train experiment=smoke`` with checks, world, editor, loader and all, ended
as its first step is; and one that imports, and nothing else, what a script would of the packages that this run uses. A
round before those that count has the files in memory and the world on disk.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Result, add_json_option, report, spread_of

MOST = 1.5
BARE = """
import time

import datasets, hydra, numpy, omegaconf, PIL.Image, pyarrow.parquet, rich.progress, safetensors.torch, torch, typer
from accelerate import Accelerator
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxTransformer2DModel
from peft import LoraConfig
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5Tokenizer

print("CPU", time.process_time(), flush=True)
"""
RUN = """
import os, sys, time

from physedit.train import events
from physedit.train.cli import main

def ended(_events, step):
    assert step == 1
    print("CPU", time.process_time(), flush=True)
    os._exit(0)

events.RunEvents.advance = ended
main()
"""
KINDS = {"run": RUN, "imports": BARE}


def main() -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    add_json_option(parser)
    asked = parser.parse_args()
    found = results(asked.rounds)
    for each in found:
        print(f"{each.name}: {each.value:.3g} {each.unit} {each.target} ({each.spread})")
    report(found, asked.json)
    return 0 if all(each.is_met is not False for each in found) else 1


def results(num_rounds: int = 5) -> list[Result]:
    """Returns seconds and CPU time of both, and the ratios of the rounds."""
    taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_rounds + 1):
            for kind in sorted(KINDS, reverse=number % 2 == 1):
                measured = seconds_of(kind, Path(folder), number)
                print(
                    f"round {number}, {kind}: " + ", ".join(f"{value:.2f} s {name}" for name, value in measured.items())
                )
                if number:
                    taken[kind].append(measured)
    found = []
    for name, target in (("CPU time", f"<= {MOST}"), ("time", "")):  # the clock also counts what others compute
        values = {kind: [each[name] for each in rounds] for kind, rounds in taken.items()}
        ratios = [run / imports for run, imports in zip(values["run"], values["imports"], strict=True)]
        what = f"{name} from start to end of the first step"
        spread = spread_of(ratios, "rounds")
        found.append(Result(f"{what}, over the bare imports", statistics.median(ratios), "", target, spread))
        spread = spread_of(values["run"], "rounds")
        found.append(Result(what, statistics.median(values["run"]), "s", "", spread))
    return found


def seconds_of(kind: str, folder: Path, number: int) -> dict[str, float]:
    """Starts a process of a kind and returns what it took.

    Raises:
        RuntimeError: it failed.
    """
    given = [
        "train", "experiment=smoke", "tracker=none", "device=cpu", f"output_root={folder / str(number)}",
        f"scenes.folder={folder / 'scenes'}",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", KINDS[kind], *given], env=environment, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    clock = time.perf_counter() - started
    words = done.stdout.split()
    if done.returncode or "CPU" not in words:
        raise RuntimeError(f"The process of kind {kind} failed.\n{done.stdout}{done.stderr}")
    return {"CPU time": float(words[words.index("CPU") + 1]), "time": clock}


if __name__ == "__main__":
    sys.exit(main())
