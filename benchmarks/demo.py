"""Runs the demo and holds its numbers against what the project promises.

    .venv/bin/python benchmarks/demo.py                 one run: time, table, every promise
    .venv/bin/python benchmarks/demo.py --twice         a second run from scratch must give identical numbers
    .venv/bin/python benchmarks/demo.py --stop-at 450   SIGTERM after that step, the same command again: identical
    .venv/bin/python benchmarks/demo.py --seed 11       another world and run seed (overrides of experiment=demo)
    .venv/bin/python benchmarks/demo.py --backbone qwen_image_edit     the other toy editor, by the same promises

Exit code 1 if a promise is broken. Needs no GPU; a run takes about six minutes on 2 cores.
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import Result, add_json_option, report

LAW_POINTS = 0.25
PHYSICS_POINTS, PHYSICS_LOW = 0.55, 0.45
SEMANTIC_LOSS = 0.03
PSNR_DB = 35.0
EXPERIMENTS = {"flux_kontext": "demo", "qwen_image_edit": "demo_qwen_image_edit"}


def main() -> int:
    """Runs what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--backbone", choices=EXPERIMENTS, default="flux_kontext")
    add_json_option(parser)
    parser.add_argument("--keep", type=Path, help="keep the run folders here instead of a temporary folder")
    arguments = parser.parse_args()
    overrides = [f"experiment={EXPERIMENTS[arguments.backbone]}", "run_name=demo"]
    if arguments.seed is not None:
        overrides += [f"seed={arguments.seed}", f"scenes.seed={arguments.seed}"]
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        first = root / "first"
        seconds = run_demo(first, overrides)
        summary = json.loads((first / "demo" / "summary.json").read_text())
        broken = promises_broken(summary)
        print(f"demo: {seconds:.0f} s without installation")
        if arguments.twice or arguments.stop_at:
            second = root / "second"
            if arguments.stop_at:
                broken += stop_demo(second, overrides, arguments.stop_at)
            run_demo(second, overrides)
            broken += differences(first / "demo", second / "demo")
    for line in broken:
        print(f"BROKEN: {line}")
    report([*results_of(summary, seconds), Result("promises broken", len(broken), "", "== 0")], arguments.json)
    print("every promise is kept" if not broken else f"{len(broken)} broken")
    return 1 if broken else 0


def command(root: Path, overrides: list[str]) -> list[str]:
    """Returns the demo's command with its own output and data folders."""
    return [
        str(Path(sys.executable).parent / "physedit"), "train",
        f"output_root={root}", f"scenes.folder={root}/scenes", *overrides,
    ]  # fmt: skip


def run_demo(root: Path, overrides: list[str]) -> float:
    """Runs the demo to its end and returns the seconds it took."""
    started = time.monotonic()
    subprocess.run(command(root, overrides), check=True)
    return time.monotonic() - started


def stop_demo(root: Path, overrides: list[str], step: int) -> list[str]:
    """Starts the demo and sends SIGTERM once metrics.jsonl shows ``step``; returns what broke a promise."""
    process = subprocess.Popen(command(root, overrides))
    metrics = root / "demo" / "metrics.jsonl"
    while process.poll() is None and newest_step(metrics) < step:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    code, stopped_at = process.wait(timeout=120), newest_step(metrics)
    print(f"stopped after step {stopped_at} with exit code {code}")
    if code != 128 + signal.SIGTERM:
        return [f"SIGTERM at step {stopped_at} ended with exit code {code}, not {128 + signal.SIGTERM}"]
    return []


def newest_step(metrics: Path) -> int:
    """Returns the newest step in a metrics file, 0 without one."""
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def promises_broken(summary: dict[str, Any]) -> list[str]:
    """Returns a sentence for each promise of the demo that the newest checkpoint does not keep."""
    metrics = summary["newest"]["metrics"]
    broken = []
    for key, value in metrics.items():
        print(f"{key:40} base {show(value['base'])} tuned {show(value['tuned'])} change {show(value['change'])}"
              f" ci95 {value['ci95']} n {value['n']}")  # fmt: skip
        if key.startswith("scenes/physics_acc/") and value["change"] < LAW_POINTS:
            broken.append(f"{key} rose by {show(value['change'])}, less than {LAW_POINTS}")
    physics, semantic, psnr = (metrics[f"scenes/{name}"] for name in ("physics_acc", "semantic_acc", "psnr"))
    if physics["change"] < PHYSICS_POINTS or physics["ci95"][0] <= PHYSICS_LOW:
        broken.append(f"physics accuracy rose by {show(physics['change'])}, interval {physics['ci95']}")
    if semantic["change"] < -SEMANTIC_LOSS:
        broken.append(f"semantic accuracy fell by {show(-semantic['change'])}")
    if psnr["tuned"] < PSNR_DB:
        broken.append(f"PSNR outside the edit is {psnr['tuned']:.2f} dB, below {PSNR_DB}")
    return broken


def results_of(summary: dict[str, Any], seconds: float) -> list[Result]:
    """Returns the figures that the promises are about."""
    metrics = summary["newest"]["metrics"]
    physics, semantic, psnr = (metrics[f"scenes/{name}"] for name in ("physics_acc", "semantic_acc", "psnr"))
    low, high = (100 * bound for bound in physics["ci95"])
    laws = [entry["change"] for key, entry in metrics.items() if key.startswith("scenes/physics_acc/")]
    interval = f"95 % interval {low:+.1f} to {high:+.1f}"
    return [
        Result("the demo without installation", seconds, "s"),
        Result(
            "change of physics accuracy", 100 * physics["change"], "points", f">= {100 * PHYSICS_POINTS:g}", interval
        ),
        Result("least change of a law", 100 * min(laws), "points", f">= {100 * LAW_POINTS:g}"),
        Result("change of semantic accuracy", 100 * semantic["change"], "points", f">= {-100 * SEMANTIC_LOSS:g}"),
        Result("PSNR outside the edit", psnr["tuned"], "dB", f">= {PSNR_DB:g}"),
    ]


def differences(first: Path, second: Path) -> list[str]:
    """Returns a sentence for each result of two runs that is not identical; keys below ``time/`` may differ."""
    broken = []
    adapters = sorted(path.relative_to(first) for path in first.rglob("pytorch_lora_weights.safetensors"))
    for name in adapters:
        if digest(first / name) != digest(second / name):
            broken.append(f"{name} differs between the two runs")
    if metrics_of(first) != metrics_of(second):
        broken.append("metrics.jsonl differs between the two runs")
    if (first / "summary.json").read_text() != (second / "summary.json").read_text():
        broken.append("summary.json differs between the two runs")
    print(f"compared {len(adapters)} adapters, metrics.jsonl and summary.json")
    return broken


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl without their times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def show(value: float | None) -> str:
    """Returns a number with four digits, or a dash."""
    return "-" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
