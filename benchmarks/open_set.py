"""Time and memory from opening a data set to its first batch, for 1,000 and for 105,085 rows.

    .venv/bin/python benchmarks/open_set.py

Writes both sets in PICA-100K's layout with small pictures to a temporary folder (about 400 MB, half of it the Arrow
cache), makes their size indexes once, and then opens each in processes of its own, in turns, as a run does: data set,
size index, buckets, plan, first batch of 8 that two workers read. Counted without imports, which do not depend on rows,
and from the start of the process to its end. Ratios are of the fastest of the repeats, since other work on the machine
only adds.

At most 1.2 times the time of 1,000 rows is promised, without imports too, and memory that does not grow with rows by
more than the order of an epoch needs. What is left of growth is time to look at every size and to sort the epoch's
order (13 ms of CPU time for 105,085 rows, measured beside other work), and of memory 4 bytes a row for that order, 3
for bucket and use, and some 7 that were used while it was made.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.results import Result, add_json_option, report

SIZES = ((24, 32), (32, 24), (32, 32))


@dataclass(frozen=True)
class Opening:
    """What one opening took, without imports; memory is what the process holds more than after them."""

    seconds: float
    own_mib: float
    mapped_mib: float
    dataset_s: float
    index_s: float
    plan_s: float
    first_batch_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs=2, default=(1_000, 105_085))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--open", type=Path, help="internal: open the set below this folder and print what it took")
    add_json_option(parser)
    arguments = parser.parse_args()
    if arguments.open is not None:
        print(json.dumps(asdict(open_set(arguments.open))))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "arrow_cache")
        for rows in arguments.rows:
            started = time.perf_counter()
            write_set(Path(folder) / str(rows), rows)
            written = time.perf_counter()
            first = opened(Path(folder) / str(rows))
            print(
                f"{rows:7d} rows: written in {written - started:.1f} s; first opening {first.seconds:.2f} s "
                f"(Arrow cache {first.dataset_s:.2f} s, size index {first.index_s:.2f} s)"
            )
        found: dict[int, list[Opening]] = {rows: [] for rows in arguments.rows}
        processes: dict[int, list[float]] = {rows: [] for rows in arguments.rows}
        for _ in range(arguments.repeats):
            for rows in arguments.rows:
                started = time.perf_counter()
                found[rows].append(opened(Path(folder) / str(rows)))
                processes[rows].append(time.perf_counter() - started)
    for rows, openings in found.items():
        print(f"{rows:7d} rows: {_shown(openings)}")
    report(results_of(found, processes), arguments.json)


def results_of(found: dict[int, list[Opening]], processes: dict[int, list[float]]) -> list[Result]:
    """Prints and returns how many rows stand to few."""
    fewer, more = found
    rows, repeats = f"{more:,} rows over {fewer:,}", f"fastest of {len(found[more])}"
    few, many = (min(o.seconds for o in found[count]) for count in found)
    print(f"without imports: {1e3 * (many - few):+.0f} ms, ratio {many / few:.2f} (promised: at most 1.2)")
    results = [Result(f"opening {rows}, without imports", many / few, "times", "<= 1.2", repeats)]
    few, many = (min(processes[count]) for count in found)
    print(f"from the start of the process: {few:.2f} and {many:.2f} s, ratio {many / few:.2f}")
    results.append(Result(f"opening {rows}, from the start of the process", many / few, "times", "<= 1.2", repeats))
    few, many = (statistics.median(o.own_mib for o in found[count]) for count in found)
    print(f"own memory: {many - few:+.1f} MiB (promised: below 2)")
    return [
        *results,
        Result(f"own memory of {more:,} rows beyond that of {fewer:,}", many - few, "MiB", "<= 2", "medians"),
    ]


def write_set(folder: Path, num_rows: int) -> None:
    """Writes parquet files of 5,000 rows; rows are sorted by law, as in PICA-100K."""
    import numpy as np
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    pictures: list[dict[str, Any]] = []
    for number in range(300):
        stream = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (*SIZES[number % 3], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(stream, "JPEG")
        pictures.append({"bytes": stream.getvalue(), "path": None})
    (folder / "data").mkdir(parents=True)
    for shard, first in enumerate(range(0, num_rows, 5_000)):
        numbers = range(first, min(first + 5_000, num_rows))
        table: dict[str, list[Any]] = {}
        table |= {f"{level}_prompt": [f"{level} {i}" for i in numbers] for level in ("superficial", "intermediate")}
        table |= {"explicit_prompt": [f"explicit {i}" for i in numbers]}
        table |= {"law": [f"law {8 * i // num_rows}" for i in numbers], "op": ["add"] * len(numbers)}
        table |= {name: [pictures[i % 300] for i in numbers] for name in ("src_img", "tgt_img")}
        parquet.write_table(pa.table(table), folder / "data" / f"train-{shard:05d}.parquet")


def opened(folder: Path) -> Opening:
    """Opens a set in a process of its own."""
    command = [sys.executable, __file__, "--open", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Opening(**json.loads(done.stdout.splitlines()[-1]))


def open_set(folder: Path) -> Opening:
    """Opens the set as a run does."""
    import datasets
    import pyarrow.parquet  # noqa: F401
    import torch

    from physedit.data_loaders.buckets import find_buckets
    from physedit.data_loaders.loader import Share, TrainingBatches
    from physedit.data_loaders.mixture import members_of
    from physedit.data_loaders.pica100k import Pica100k
    from physedit.data_loaders.sample import PromptLevel
    from physedit.data_loaders.size_index import SizeIndex
    from physedit.data_loaders.slots import LevelMix, RunPlan
    from physedit.models.sizes import qwen_size

    datasets.Dataset.from_dict({"warm": [0]})
    torch.set_num_threads(1)
    before = _memory_mib()
    marks = [time.perf_counter()]
    dataset = Pica100k(path=str(folder))
    marks.append(time.perf_counter())
    index = SizeIndex.of(dataset, folder / "size_index", num_workers=2)
    marks.append(time.perf_counter())
    buckets = find_buckets(index.rows["source"], lambda h, w: qwen_size(h, w, area_px=1024**2))
    levels = LevelMix({PromptLevel.SUPERFICIAL: 1.0})
    plan = RunPlan(index, buckets, members_of(dataset), seed=0, levels=levels, micro_batch=8)
    marks.append(time.perf_counter())
    first = next(iter(TrainingBatches(dataset, plan, share=Share(8), num_workers=2)))
    marks.append(time.perf_counter())
    assert sum(first.batch.weights) == 8
    own, mapped = (after - start for after, start in zip(_memory_mib(), before, strict=True))
    steps = [later - earlier for earlier, later in pairwise(marks)]
    return Opening(marks[-1] - marks[0], own, mapped, *steps)


def _memory_mib() -> tuple[float, float]:
    """Returns the process's own memory and what it has mapped of files, which the system may take back."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(fields["RssAnon"].split()[0]) / 1024, float(fields["RssFile"].split()[0]) / 1024


def _shown(openings: list[Opening]) -> str:
    def median(name: str) -> float:
        values: list[float] = [getattr(opening, name) for opening in openings]
        return statistics.median(values)

    spread = [opening.seconds for opening in openings]
    return (
        f"{median('seconds'):.2f} s to the first batch (from {min(spread):.2f} to {max(spread):.2f}): data set "
        f"{median('dataset_s'):.3f}, size index {median('index_s'):.3f}, plan {median('plan_s'):.3f}, first batch "
        f"{median('first_batch_s'):.3f}; own memory grows by {median('own_mib'):.1f} MiB, mapped files "
        f"by {median('mapped_mib'):.1f} MiB"
    )


if __name__ == "__main__":
    main()
