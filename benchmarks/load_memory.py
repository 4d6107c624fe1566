"""Measures the memory that loading a pipeline takes at its worst, over the size of its weights in memory.

.venv/bin/python benchmarks/load_memory.py            writes some 350 MB of random weights to a temporary folder

Each load is a fresh process, which then reads every weight once, for weights stored as they are wanted are only mapped
until they are used. Pages of the files, which the system takes back when it needs them, are told from the process's
own. Linux alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch

from benchmarks.results import Result, add_json_option, report
from physedit.models import random_tiny
from physedit.models.flux_kontext import FluxKontext
from physedit.models.flux_pipeline import load_pipeline
from physedit.models.loading import modules_of

MIB = 2**20
STATUS = Path("/proc/self/status")
SHARD = "16MB"


def main() -> int:
    """Prints one line a combination of stored and loaded dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="measure one load of this folder, in this process")
    parser.add_argument("--dtype", default="bfloat16")
    add_json_option(parser)
    arguments = parser.parse_args()
    if arguments.folder:
        measured = measure(arguments.folder, arguments.dtype)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(measured), encoding="utf-8")
        return 0
    results = []
    print("stored    loaded     weights      peak of all  own pages  files' pages  in the end")
    with tempfile.TemporaryDirectory() as work:
        for stored, loaded in (("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("float32", "float32")):
            folder = Path(work) / stored
            if not folder.exists():
                write_pipeline(folder, getattr(torch, stored))
            print(f"{stored:9} {loaded:9}", end=" ", flush=True)
            found = Path(work) / "found.json"
            command = [sys.executable, __file__, "--folder", str(folder), "--dtype", loaded, "--json", str(found)]
            subprocess.run(command, check=True)
            own, peak = json.loads(found.read_text(encoding="utf-8"))
            what = f"over weights, stored in {stored}, loaded in {loaded}"
            results += [Result(f"own memory {what}", own, "times"), Result(f"memory with files' {what}", peak, "times")]
    report(results, arguments.json)
    return 0


def write_pipeline(folder: Path, dtype: torch.dtype) -> None:
    """Writes a random FLUX.1-Kontext pipeline of some 64 million parameters in shards."""
    random_tiny._NUM_HEADS = 40
    random_tiny._TEXT_WIDTH = 1024
    pipeline = load_pipeline("random_tiny", dtype)
    pipeline.save_pretrained(folder, max_shard_size=SHARD)


def measure(folder: str, dtype: str) -> tuple[float, float]:
    """Prints what the load of ``folder`` in this process takes beyond what the process had before.

    Returns the most of the process's own memory and of all its memory, over the weights.
    """
    # Everything that the first load imports and keeps is in place before.
    FluxKontext(weights="toy", dtype="float32", max_text_tokens=24, area_px=4096)
    before = memory_kib()
    # Resets the process's own record of its peak.
    Path("/proc/self/clear_refs").write_text("5")
    sampler = Sampler()
    with sampler:
        backbone = FluxKontext(weights=folder, dtype=dtype, max_text_tokens=24, area_px=4096)  # type: ignore[arg-type]
        weights = sum(read(value) for part in modules_of(backbone._pipeline).values() for value in part.parameters())
    after = memory_kib()

    def shown(kib: int) -> str:
        return f"{1024 * kib / MIB:5.0f} MiB {1024 * kib / weights:4.2f}x"

    peak_kib, own_kib = after["VmHWM"] - before["VmRSS"], sampler.most["RssAnon"] - before["RssAnon"]
    print(
        f"{weights / MIB:5.0f} MiB",
        shown(peak_kib),
        shown(own_kib),
        shown(sampler.most["RssFile"] - before["RssFile"]),
        shown(after["VmRSS"] - before["VmRSS"]),
        sep="  ",
    )
    return 1024 * own_kib / weights, 1024 * peak_kib / weights


def read(weight: torch.Tensor) -> int:
    """Reads every byte of a weight and returns how many there are."""
    weight.detach().reshape(-1).view(torch.uint8).max()
    return weight.numel() * weight.element_size()


def memory_kib() -> dict[str, int]:
    """Returns the process's memory in KiB by the kernel's names."""
    fields = (line.split() for line in STATUS.read_text().splitlines())
    return {name.rstrip(":"): int(rest[0]) for name, *rest in fields if rest[-1:] == ["kB"]}


class Sampler:
    """Notes the most of each kind of memory, every millisecond."""

    def __init__(self) -> None:
        self.most = memory_kib()
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_done.wait(0.001):
            now = memory_kib()
            self.most = {name: max(most, now[name]) for name, most in self.most.items()}


if __name__ == "__main__":
    sys.exit(main())
