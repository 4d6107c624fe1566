"""Measures reading encoded pairs against encoding them, and prints what the released models need of a disk.

    python -m benchmarks.encoded_cache           two CPU cores, no GPU, no download; about two minutes

Measured is what a training step waits for, from the loader's request to a conditioning, micro batches of one, no
worker processes: with encode=live reading, decoding and encoding of pictures and instruction, with nothing kept from
before; with encode=cached reading, checksum and copying of the entry, from the page cache. The toys work at 64x64, and
the shipped FLUX toy is also run at 256x256; the released models' encoders are some thousand times larger and their
entries some hundred times. The time of a pair is the median of all, in CPU seconds of the one thread that works: other
processes of the machine do not count, and from the page cache there is nothing else to wait for.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.results import Result, add_json_option, report
from physedit.data_loaders.buckets import find_buckets
from physedit.data_loaders.encoded import EncodedRows, TextSource
from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.mixture import members_of
from physedit.data_loaders.pica100k import Pica100k
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.scenes.write import ensure_world
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import LevelMix, RunPlan
from physedit.models.backbone import Backbone, conditioning_of
from physedit.models.flux_kontext import FluxKontext
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.train.filling import Filling, fill
from physedit.train.processes import Processes

NUM_PAIRS = 100
MIB = 2**20
PICA100K_ROWS = 105_085
LEAST = 20.0
"""How many times faster reading must be."""


@dataclass(frozen=True)
class Released:
    """Sizes of a released editor at 1024x1024 in bfloat16.

    Source: transformer and text encoder configurations of the models (docs/memory.md); tokens of Qwen's text from the
    template, the grid of its vision tower (14 pixels, 2x2 merged) and an instruction of about 20 tokens.
    """

    name: str
    text_tokens: int
    text_width: int


RELEASED = (
    Released("FLUX.1-Kontext-dev, 512 T5 tokens", 512, 4096),
    Released("Qwen-Image-Edit, one picture", 1369 + 30, 3584),
    Released("Qwen-Image-Edit-2511, one picture", 196 + 35, 3584),
)


def main() -> int:
    """Prints both tables; returns 1 if reading is not ``LEAST`` times faster than encoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print_sizes()
    toy = partial(FluxKontext, weights="toy", dtype="float32", max_text_tokens=24)
    builds: dict[str, Callable[[], Backbone]] = {
        "toy FLUX, 64x64": partial(toy, area_px=64 * 64),
        "toy FLUX, 256x256": partial(toy, area_px=256 * 256),
        "toy Qwen, 64x64": partial(
            QwenImageEdit, weights="toy", dtype="float32", pipeline="QwenImageEditPipeline", area_px=64 * 64
        ),
    }
    print("\n| backbone | encode | read | times faster | an entry | filled |\n|---|---|---|---|---|---|")
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as work:
        ensure_world(Path(work) / "world", num_train=NUM_PAIRS, num_benchmark=6, seed=5)
        for name, build in builds.items():
            ratios[name] = measure(name, build(), Path(work))
    how = f"medians of {NUM_PAIRS} pairs"
    results = [
        Result(f"encoding a pair over reading it, {name}", ratio, "times", f">= {LEAST:g}", how)
        for name, ratio in ratios.items()
    ]
    report(results, asked.json)
    return 0 if min(ratios.values()) >= LEAST else 1


def print_sizes() -> None:
    """Prints what a pair of each released model takes in the cache."""
    latents = 2 * 16 * 128 * 128 * 2 + 128 * 128 * 4  # source and target in bfloat16, the change map in float32
    print("| a pair at 1024x1024 | latents | text, each level | PICA-100K, one level | latents alone |")
    print("|---|---|---|---|---|")
    for model in RELEASED:
        text = model.text_tokens * model.text_width * 2
        both, alone = ((latents + part) * PICA100K_ROWS / 2**30 for part in (text, 0))
        print(
            f"| {model.name} | {latents / MIB:.2f} MiB | {text / MIB:.2f} MiB | {both:.0f} GiB | {alone:.0f} GiB |",
        )


def measure(name: str, backbone: Backbone, work: Path) -> float:
    """Prints one line and returns how many times faster reading is."""
    dataset = Pica100k(path=str(work / "world" / "train"))
    index = SizeIndex.of(dataset, work / "indexes", num_workers=0)
    levels = LevelMix({PromptLevel.EXPLICIT: 1.0})
    buckets = find_buckets(index.rows["source"], backbone.sizes_of)
    plan = RunPlan(index, buckets, members_of(dataset), seed=0, levels=levels, micro_batch=1)
    folder = work / name.replace(" ", "_")
    task = Filling(backbone, dataset, plan, folder, with_text=True, can_write=True, can_encode_text=True, num_workers=0)
    started = time.process_time()
    store, keys, counts = fill(task, Processes(1))
    seconds_to_fill = time.process_time() - started
    rows = EncodedRows(dataset, index, store, keys, TextSource.CACHED)
    batches = partial(TrainingBatches, dataset, plan, share=Share(1), stop_position=NUM_PAIRS)
    encoding = median_seconds(backbone, iter(batches()))
    median_seconds(backbone, iter(batches(encoded=rows)))  # brings the files into the page cache
    reading = median_seconds(backbone, iter(batches(encoded=rows)))
    entry_kib = counts.bytes_in_use / NUM_PAIRS / 1024
    print(
        f"| {name} | {1000 * encoding:.2f} ms | {1000 * reading:.2f} ms | {encoding / reading:.0f} | "
        f"{entry_kib:.0f} KiB | {NUM_PAIRS / seconds_to_fill:.0f} pairs/s |",
        flush=True,
    )
    return encoding / reading


def median_seconds(backbone: Backbone, batches: Iterator[PositionedBatch]) -> float:
    """Returns the median CPU time from asking for a micro batch to its conditioning."""
    seconds = []
    for _ in range(NUM_PAIRS):
        backbone.forget()
        started = time.process_time()
        conditioning_of(backbone, next(batches).batch, torch.device("cpu"))
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    raise SystemExit(main())
