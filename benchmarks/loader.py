"""Throughput of the loader over what its workers could decode if nothing else had to be done.

    .venv/bin/python benchmarks/loader.py

Writes pairs of 1024x768 JPEG in PICA-100K's layout to a temporary folder. Each round reads the same rows twice, in
turns: once decoded in two processes that throw the pixels away (the limit), once through ``TrainingBatches`` with
two workers in micro batches of 4. The start of the processes counts on both sides. 0.9 of the limit is promised. CPU
time says the same for a machine whose cores are all busy, and is steadier beside other work.
"""

import argparse
import io
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import Result, add_json_option, report, spread_of

NUM_WORKERS = 2
MICRO_BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    add_json_option(parser)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "arrow_cache")
        write_set(Path(folder), arguments.rows)
        report(measure(Path(folder), arguments.rows * arguments.epochs, arguments.rounds), arguments.json)


def measure(folder: Path, num_samples: int, num_rounds: int) -> list[Result]:
    """Prints pairs a second of both, and returns the medians of the rounds' ratios."""
    from physedit.data_loaders.buckets import find_buckets
    from physedit.data_loaders.loader import Share, TrainingBatches
    from physedit.data_loaders.mixture import members_of
    from physedit.data_loaders.pica100k import Pica100k
    from physedit.data_loaders.sample import PromptLevel
    from physedit.data_loaders.size_index import SizeIndex
    from physedit.data_loaders.slots import LevelMix, RunPlan
    from physedit.models.sizes import qwen_size

    dataset = Pica100k(path=str(folder))
    index = SizeIndex.of(dataset, folder / "size_index", num_workers=0)
    buckets = find_buckets(index.rows["source"], lambda height, width: qwen_size(height, width, area_px=1024**2))
    levels = LevelMix({PromptLevel.SUPERFICIAL: 1.0})
    plan = RunPlan(index, buckets, members_of(dataset), seed=0, levels=levels, micro_batch=MICRO_BATCH)
    ratios, cpu_ratios = [], []
    for number in range(num_rounds):
        before = _cpu_s()
        limit = num_samples / decode_alone(dataset, plan, num_samples)
        between = _cpu_s()
        loader = TrainingBatches(
            dataset, plan, share=Share(MICRO_BATCH), stop_position=num_samples, num_workers=NUM_WORKERS
        )
        started = time.perf_counter()
        read = sum(len(positioned.batch) for positioned in loader)
        reached = read / (time.perf_counter() - started)
        assert read == num_samples
        del loader
        ratios.append(reached / limit)
        alone_ms, loaded_ms = (1e3 * used / num_samples for used in (between - before, _cpu_s() - between))
        cpu_ratios.append(alone_ms / loaded_ms)
        print(
            f"round {number}: limit {limit:.1f} pairs/s, loader {reached:.1f} pairs/s, ratio {ratios[-1]:.3f}; "
            f"CPU time {alone_ms:.1f} and {loaded_ms:.1f} ms a pair, ratio {cpu_ratios[-1]:.3f}"
        )
    print(
        f"median ratio {statistics.median(ratios):.3f}, of CPU time {statistics.median(cpu_ratios):.3f} "
        f"(at least 0.9 is promised)"
    )
    what, spread = "loader over decoding alone, 2 workers", spread_of(ratios, "rounds")
    cpu_spread = spread_of(cpu_ratios, "rounds")
    return [
        Result(f"{what}, pairs a second", statistics.median(ratios), "times", ">= 0.9", spread),
        Result(f"{what}, pairs a second of CPU time", statistics.median(cpu_ratios), "times", ">= 0.9", cpu_spread),
    ]


def _cpu_s() -> float:
    """Returns the CPU time of this process and of those that have ended for it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def decode_alone(dataset: object, plan: object, num_samples: int) -> float:
    """Returns the seconds that two processes take to decode the same rows and forget them."""
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_decode, args=(dataset, plan, range(which, num_samples, NUM_WORKERS)))
        for which in range(NUM_WORKERS)
    ]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    assert [worker.exitcode for worker in workers] == [0] * NUM_WORKERS
    return seconds


def _decode(dataset: Any, plan: Any, positions: range) -> None:
    for position in positions:
        slot = plan.at(position)
        dataset.sample(slot.row, slot.level)


def write_set(folder: Path, num_rows: int) -> None:
    """Writes smooth pictures with some noise, so that their JPEG is about as large as a photograph's."""
    import numpy as np
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    pictures: list[dict[str, Any]] = []
    for _ in range(20):
        coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)).resize((1024, 768))
        pixels = np.asarray(coarse).astype(np.int16) + rng.integers(-12, 13, (768, 1024, 3))
        stream = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
        pictures.append({"bytes": stream.getvalue(), "path": None})
    print(f"{num_rows} rows of two pictures of {len(pictures[0]['bytes']) / 1024:.0f} KiB")
    table: dict[str, list[Any]] = {}
    table |= {f"{level}_prompt": [f"{level} {i}" for i in range(num_rows)] for level in ("superficial", "intermediate")}
    table |= {"explicit_prompt": [f"explicit {i}" for i in range(num_rows)]}
    table |= {"law": ["Reflection"] * num_rows, "op": ["add"] * num_rows}
    table |= {"src_img": [pictures[i % 20] for i in range(num_rows)]}
    table |= {"tgt_img": [pictures[(i + 7) % 20] for i in range(num_rows)]}
    parquet.write_table(pa.table(table), folder / "train-00000.parquet")


if __name__ == "__main__":
    main()
