"""Measures what ``backbone.compile_blocks=inductor`` gives on the CPU, and what it takes to compile.

    python -m benchmarks.compiled [--rounds 8] [--calls 10] [--tiny]

A Kontext of the real class, 36 M parameters in float32, LoRA of rank 16, a pair of 128x128, one thread; it needs a C++
compiler. One process compiles into an empty cache what a training step (forward, mean squared error, backward, AdamW)
needs and then what a denoising call (evaluation mode, without gradient) needs beside it; the next process finds that
cache, as a restarted run does. Compiling takes what the first of such calls takes more than later ones,
CPU time of the C++ compiler included. Then, in the second process, blocks of calls of the compiled editor and of one
that is not compiled take turns in random order; ratios are of a round's two blocks. What both predict must agree.
``--tiny`` takes the tests' random editor instead, to try the module.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.results import Result, add_json_option, report, spread_of
from benchmarks.step_overhead import write_pipeline
from physedit.data_loaders.sample import EditBatch
from physedit.models.blocks import CompileBackend
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings, add_adapter
from physedit.train.state import trainable

SIDE_PX, RANK = 128, 16
MOST_APART = 1e-4
"""Between what both predict, of the largest value: they sum float32 in another order."""
KINDS = {"step": "training step", "call": "denoising call"}
CLOCKS = ("CPU time", "time")  # the second also counts what others compute
Calls = dict[str, Callable[[], Tensor]]
"""Each makes a call of its kind and returns what is predicted."""
Seconds = dict[str, list[float]]
"""By kind of call, editor and clock: one value a round, or the one of a first call."""


def main() -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=10, help="of one editor in a round")
    parser.add_argument("--tiny", action="store_true", help="with the tests' random editor")
    parser.add_argument("--process", nargs=2, metavar=("WEIGHTS", "FILE"), help="what a process of its own does")
    add_json_option(parser)
    asked = parser.parse_args()
    if asked.process:
        weights, path = asked.process
        Path(path).write_text(json.dumps(measured(weights, asked.rounds, asked.calls)), encoding="utf-8")
        return 0
    found = results(asked.rounds, asked.calls, is_tiny=asked.tiny)
    for each in found:
        print(f"{each.name}: {each.value:.4g} {each.unit} ({each.spread})")
    report(found, asked.json)
    return 0


def results(num_rounds: int, num_calls: int, *, is_tiny: bool) -> list[Result]:
    """Returns what compiled calls take over others, and what compiling takes with an empty cache and a filled one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = "random_tiny" if is_tiny else str(write_pipeline(folder / "weights"))
        empty = in_process(folder, weights, 0, num_calls)
        filled = in_process(folder, weights, num_rounds, num_calls)
    caches = {"empty": empty, "filled": filled}
    editor = "the tests' random Kontext" if is_tiny else "Kontext of 36 M parameters"
    return [
        *(each for kind in KINDS if num_rounds for each in of_rounds(filled, kind, f"{num_calls} calls", editor)),
        *(each for cache, seconds in caches.items() for each in of_compiling(seconds, f"{editor}, {cache} cache")),
    ]


def of_rounds(seconds: Seconds, kind: str, calls: str, editor: str) -> list[Result]:
    """Returns the ratios of compiled calls of a kind to others, and what one of the others takes."""
    found = []
    for clock in CLOCKS:
        ours, plain = (seconds[f"{kind}, {which}, {clock}"] for which in ("compiled", "plain"))
        ratios = [first / second for first, second in zip(ours, plain, strict=True)]
        what = f"{clock} of a {KINDS[kind]}, {editor}"
        spread = spread_of(ratios, f"rounds of {calls}")
        found.append(Result(f"{what}, compiled over not", statistics.median(ratios), "", "", spread))
        milliseconds = [1e3 * each for each in plain]
        spread = spread_of(milliseconds, "rounds")
        found.append(Result(f"{what}, not compiled", statistics.median(milliseconds), "ms", "", spread))
    return found


def of_compiling(seconds: Seconds, what: str) -> list[Result]:
    """Returns what compiling both kinds of calls took."""
    found = []
    for clock in CLOCKS:
        parts = {words: seconds[f"{kind}, first, {clock}"][0] for kind, words in KINDS.items()}
        told = ", ".join(f"{words} {value:.1f}" for words, value in parts.items())
        found.append(Result(f"{clock} of compiling, {what}", sum(parts.values()), "s", "", told))
    return found


def in_process(folder: Path, weights: str, num_rounds: int, num_calls: int) -> Seconds:
    """Returns what a new process measures that keeps compiled code below ``folder``.

    Raises:
        CalledProcessError: it failed.
    """
    path = folder / "seconds.json"
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    told = ["--process", weights, str(path), "--rounds", str(num_rounds), "--calls", str(num_calls)]
    subprocess.run([sys.executable, "-m", "benchmarks.compiled", *told], env=environment, check=True)
    seconds: Seconds = json.loads(path.read_text(encoding="utf-8"))
    return seconds


def measured(weights: str, num_rounds: int, num_calls: int) -> Seconds:
    """Returns seconds of first calls beyond those of later ones, and of the calls of each round."""
    torch.set_num_threads(1)
    editors = {"compiled": calls_of(editor_of(weights, "inductor")), "plain": calls_of(editor_of(weights, None))}
    found: Seconds = {}
    for kind in KINDS:
        predicted = {}
        for which, calls in editors.items():
            first, later = taken(calls[kind], 1), taken(calls[kind], num_calls)
            for clock in CLOCKS if which == "compiled" else ():
                found[f"{kind}, first, {clock}"] = [max(0.0, first[clock] - later[clock])]
            predicted[which] = calls[kind]()
        apart = (predicted["compiled"] - predicted["plain"]).abs().max() / predicted["plain"].abs().max()
        print(f"{KINDS[kind]}: {float(apart):.1e} apart, of the largest value predicted")
        assert apart < MOST_APART
    order = random.Random(0)
    blocks = [(kind, which) for kind in KINDS for which in editors]
    for number in range(num_rounds):
        for kind, which in order.sample(blocks, len(blocks)):
            for clock, value in taken(editors[which][kind], num_calls).items():
                found.setdefault(f"{kind}, {which}, {clock}", []).append(value)
                print(f"round {number + 1}, {kind}, {which}: {1e3 * value:.1f} ms {clock}", flush=True)
    return found


def editor_of(weights: str, backend: CompileBackend | None) -> FluxKontext:
    """Returns an editor with an adapter that changes what it predicts."""
    editor = FluxKontext(
        weights=weights, dtype="float32", max_text_tokens=24, area_px=SIDE_PX**2, compile_blocks=backend
    )
    targets = editor.lora_presets["attention_mlp"]
    add_adapter(editor.denoiser, LoraSettings(RANK, float(RANK)), targets=targets, seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in trainable(editor.denoiser).values():
        parameter.data.normal_(std=0.02, generator=generator)
    return editor


def calls_of(editor: FluxKontext) -> Calls:
    """Returns the two kinds of calls, over inputs that are at hand."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (2, 3, SIDE_PX, SIDE_PX), dtype=torch.uint8, generator=generator)
    given = editor.encode(EditBatch(("0",), (pictures[0],), (pictures[1],), ("Remove the ball.",)))
    noise, sigma = torch.randn(given.target.shape, generator=generator), torch.full([1], 0.7)
    # The rate of 0 has it compute all that it would, and both editors stay alike.
    optimizer = torch.optim.AdamW(trainable(editor.denoiser).values(), lr=0.0)

    def step() -> Tensor:
        editor.denoiser.train()
        predicted = editor.velocity(editor.denoiser, noise, sigma, given)
        F.mse_loss(predicted, noise - given.target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return predicted.detach()

    @torch.no_grad()
    def call() -> Tensor:
        editor.denoiser.eval()
        return editor.velocity(editor.denoiser, noise, sigma, given)

    return {"step": step, "call": call}


def taken(call: Callable[[], Tensor], num_calls: int) -> dict[str, float]:
    """Returns the seconds of a call by each clock."""
    clock, cpu = time.perf_counter(), cpu_seconds()
    for _ in range(num_calls):
        call()
    seconds = {"CPU time": cpu_seconds() - cpu, "time": time.perf_counter() - clock}
    return {name: value / num_calls for name, value in seconds.items()}


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of those that it has waited for, such as compilers."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
