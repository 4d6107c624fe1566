"""Measures LoRA training of the released sizes on one GPU and sets it beside what ``physedit estimate`` tells.

benchmarks/gpu.sh                                    ten minutes; see there
benchmarks/gpu.sh --rank 64 --models qwen            another adapter, one editor

The editors have the released architectures and random weights, made on the GPU (``backbone.weights=random_released``):
transformer, VAE and text encoders all run. Of each editor the settings are tried that ``physedit estimate --search``
puts first, but for quantised ones, whose base must be read from files. One process each, which is cut off in time; what
it noted until then is kept.

Measured are steps of the real loop: loading 1024x1024 pictures, encoding them and their instructions, forward, backward
and update. Not measured: released weights and tokenizers (an instruction has as many tokens as letters), evaluations,
checkpoints, several GPUs.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from omegaconf import DictConfig

from benchmarks.gpu.leg import MEASURED
from benchmarks.gpu.pairs import write_pairs
from benchmarks.gpu.table import Leg, Report, table
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.estimate import Estimate, useful_flops
from physedit.train.estimate_gpus import GPUS, Gpu, find_gpu, gpu_of_device, time_range
from physedit.train.estimate_search import Found, search

MODELS = {"kontext": "pica100k_kontext", "qwen": "pica100k_qwen_image_edit"}
LEG_S, LEAST_LEG_S, END_S = 90.0, 25.0, 10.0
"""Most and least seconds of a setting, and what is left to write the results in."""
TINY_SIDE = 64
"""Pixels a side with ``--tiny``."""
NOMINAL = "H100"
"""The card that ``--tiny`` tells predictions for, which then mean nothing."""


@dataclass(frozen=True, slots=True)
class Card:
    """The device: its name, and its entry in the table of ``physedit estimate``."""

    name: str
    entry: str
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class Planned:
    """A setting to try."""

    model: str
    overrides: tuple[str, ...]
    config: DictConfig
    found: Found


def main() -> int:
    """Measures, prints the table and writes both files."""
    given = arguments()
    deadline = time.monotonic() + given.seconds
    is_tiny, card = given.tiny, None if given.tiny else this_card(given.gpu)
    if card is None:
        if not is_tiny:
            print("No GPU: the same path runs on the CPU at tiny size (--tiny). Its figures mean nothing.")
        is_tiny, card = True, Card("CPU", NOMINAL, GPUS[NOMINAL])
    given.out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["benchmarks/gpu.sh", *sys.argv[1:]])
    report = Report(
        card=card.name,
        predicted_for=card.entry,
        driver="" if is_tiny else driver(),
        torch=torch.__version__,
        cuda=str(torch.version.cuda or ""),
        commit=commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        is_tiny=is_tiny,
        products=products_of([f"experiment={MODELS[name]}" for name in given.models]),
        rank=given.rank,
        side_px=TINY_SIDE if is_tiny else 1024,
        legs=[],
    )
    with tempfile.TemporaryDirectory() as scratch:
        pairs = Path(scratch) / "pairs"
        write_pairs(pairs, count=16 if is_tiny else 96, side=report.side_px)
        planned = plan(given, card.gpu, pairs, is_tiny=is_tiny)
        for number, each in enumerate(planned):
            left = deadline - END_S - time.monotonic()
            limit_s = min(LEG_S, left / (len(planned) - number))
            report.legs.append(leg_of(each, card.gpu, Path(scratch), limit_s=limit_s))
            write(report, given.out)
            print(f"{each.model} {' '.join(each.found.overrides)}: {report.legs[-1].outcome}")
    write(report, given.out)
    print(f"\n{table(report)}\nIn {given.out}: results.json and table.md.")
    return 0 if any(leg.outcome == MEASURED for leg in report.legs) else 1


def arguments() -> argparse.Namespace:
    """Returns what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="on the CPU at tiny size: shows that the path works")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--settings", type=int, choices=range(1, 10), default=3, help="of each editor, the best first")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of it")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter")
    parser.add_argument("--gpu", help=f"whose rates the card has, if its name is unknown: {', '.join(GPUS)}")
    parser.add_argument("--out", type=Path, default=Path("runs") / "gpu_benchmark")
    return parser.parse_args()


def plan(given: argparse.Namespace, gpu: Gpu, pairs: Path, *, is_tiny: bool) -> list[Planned]:
    """Returns the settings to try: the best of each editor, then the second best, and so on."""
    chosen = []
    for model in given.models:
        base = overrides_of(model, given.rank, pairs, is_tiny=is_tiny)
        config = compose_config(base)
        found = [each for each in search(config, gpu).found if "backbone.quantization=null" in each.overrides]
        if not found:
            print(f"{model}: nothing fits without quantisation. Try a lower --rank.")
        for place, each in enumerate(found[: given.settings]):
            changed = [*base, *each.overrides]
            chosen.append((place, Planned(model, tuple(changed), compose_config(changed), each)))
    return [each for _, each in sorted(chosen, key=lambda entry: entry[0])]


def products_of(recipes: list[str]) -> str:
    """Returns what the adapters of the recipes multiply in."""
    return " and ".join(sorted({str(compose_config([recipe]).adapter.compute_dtype) for recipe in recipes}))


def overrides_of(model: str, rank: int, pairs: Path, *, is_tiny: bool) -> list[str]:
    """Returns the recipe as it is tried on one device: another adapter, a smaller global batch, synthetic pairs."""
    found = [
        f"experiment={MODELS[model]}", "launch=none", "tracker=none", "data=pairs", f"data.path={pairs}",
        "data.source=source", "data.target=target", "data.instruction=instruction", f"output_root={pairs.parent}",
        f"run_name={model}", f"adapter.rank={rank}", "num_steps=1000", "log_every=1",
    ]  # fmt: skip
    if not is_tiny:
        return [*found, "backbone.weights=random_released", "global_batch=4", "micro_batch=1", "num_workers=2"]
    shorter = ["backbone.max_text_tokens=48"] if model == "kontext" else []
    return [
        *found, *shorter, "backbone.weights=random_tiny", f"backbone.area_px={TINY_SIDE**2}", "global_batch=2",
        "micro_batch=1", "num_workers=0", "device=cpu", "num_threads=1",
    ]  # fmt: skip


def leg_of(planned: Planned, gpu: Gpu, scratch: Path, *, limit_s: float) -> Leg:
    """Runs one setting in a process of its own and returns what became of it, beside what was predicted."""
    found: Estimate = planned.found.estimate
    predicted = time_range(found, gpu)
    samples_s = found.micro_batch * found.accumulation
    total = found.accumulation * (found.step.flops + found.micro_batch * found.encoding_flops)
    record = run_leg(planned.overrides, scratch / "leg.json", limit_s=limit_s)
    return Leg.of(
        record,
        model=planned.model,
        overrides=planned.found.overrides,
        predicted_peak=found.peak,
        predicted_range_s=(1 / predicted.most_samples_s, 1 / predicted.least_samples_s),
        predicted_s=predicted.sample_s,
        useful_flops=useful_flops(planned.config),
        done_flops=total // samples_s,
        peak_flops=gpu.tensor_tflops * 1e12,
    )


def run_leg(overrides: tuple[str, ...], file: Path, *, limit_s: float) -> dict[str, object]:
    """Returns the record of a process that is killed at ``limit_s``."""
    file.unlink(missing_ok=True)
    if limit_s < LEAST_LEG_S:
        return {"outcome": "not started", "message": "no time was left", "step_s": []}
    command = [sys.executable, "-m", "benchmarks.gpu.leg", *overrides, "--json", str(file), "--limit-s", str(limit_s)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        said = f"cut off after {limit_s:.0f} s"
    if not file.exists():
        return {"outcome": "failed", "message": last_line(said), "step_s": []}
    record: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    if process.returncode:
        steps = record["step_s"]
        assert isinstance(steps, list)
        is_cut = process.returncode == -signal.SIGKILL and said.startswith("cut off")
        ended = "timed out" if is_cut else "failed"
        record |= {"outcome": MEASURED if is_cut and len(steps) > 1 else ended, "message": last_line(said)}
    return record


def last_line(said: str) -> str:
    """Returns the last line that says something."""
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")


def this_card(named: str | None) -> Card | None:
    """Returns the first CUDA device; None without one.

    It is asked for in another process: here it would take memory from the settings that are tried.

    Raises:
        SystemExit: its name is in no table, and no ``--gpu`` says whose rates it has.
    """
    ask = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    name = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    if not name:
        return None
    entry = named or gpu_of_device(name)
    if entry is None:
        raise SystemExit(f"{name} is not in the table of GPUs. Say whose rates it has with --gpu: {', '.join(GPUS)}.")
    return Card(name, entry, find_gpu(entry))


def driver() -> str:
    """Returns the version of NVIDIA's driver; empty if it cannot be asked for."""
    if shutil.which("nvidia-smi") is None:
        return ""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split()
    return said[0] if said else ""


def commit() -> str:
    """Returns the commit that is checked out; empty outside a repository."""
    ask = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()


def write(report: Report, folder: Path) -> None:
    """Writes both files."""
    (folder / "results.json").write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table(report), encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ConfigError, OSError) as error:
        print(f"benchmarks/gpu.sh: {error}", file=sys.stderr)
        sys.exit(2)
