"""A folder of edit pairs of random pixels, and filling an encoded cache with it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from physedit.data_loaders.buckets import find_buckets
from physedit.data_loaders.encoded import EncodedRows, TextSource
from physedit.data_loaders.loader import PositionedBatch, Share, TrainingBatches
from physedit.data_loaders.mixture import members_of
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.sample import PromptLevel
from physedit.data_loaders.size_index import SizeIndex
from physedit.data_loaders.slots import LevelMix, RunPlan
from physedit.models.backbone import Backbone
from physedit.train.filling import EncodeCounts, Filling, fill
from physedit.train.processes import Processes

SHOWN = LevelMix({PromptLevel.SUPERFICIAL: 1.0})
SIDE = 64


@dataclass(frozen=True)
class Pair:
    """A row of ``metadata.jsonl``: source, target and reference are ``NUMBERa.bmp``, ``..b.bmp`` and ``..c.bmp``."""

    number: int
    caption: str


def write_picture(path: Path, seed: int, height: int = SIDE, width: int = SIDE) -> None:
    """Writes random pixels; a BMP of one size has one number of bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_pairs(folder: Path, pairs: Sequence[Pair]) -> None:
    """Writes the table, and the pictures that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for pair in pairs:
        names = [f"{pair.number}{side}.bmp" for side in "abc"]
        for seed, name in enumerate(names):
            if not (folder / name).exists():
                write_picture(folder / name, 3 * pair.number + seed)
        lines.append(json.dumps({"before": names[0], "after": names[1], "more": names[2], "text": pair.caption}))
    (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")


def some_pairs(count: int) -> list[Pair]:
    """Captions of unlike lengths, each of which names its row."""
    return [Pair(number, f"Remove ball {number}" + " and the stand" * (number % 3)) for number in range(count)]


def filling(
    backbone: Backbone, data: Path, cache: Path, *, micro_batch: int = 1, references: tuple[str, ...] = ()
) -> Filling:
    """Returns the task of filling ``cache`` with the pairs in ``data``; ``more`` is a column of references."""
    dataset = Pairs(
        path=str(data), source="before", target="after", instruction="text", level="superficial", references=references
    )
    index = SizeIndex.of(dataset, cache.parent / "indexes", num_workers=0)
    buckets = find_buckets(index.rows["source"], backbone.sizes_of)
    plan = RunPlan(index, buckets, members_of(dataset), seed=3, levels=SHOWN, micro_batch=micro_batch)
    return Filling(backbone, dataset, plan, cache, with_text=True, can_write=True, can_encode_text=True, num_workers=0)


def counted(counts: EncodeCounts) -> tuple[int, int, int]:
    """Returns how many rows were encoded, reused and dropped."""
    return counts.encoded, counts.reused, sum(counts.dropped.values())


def fill_alone(task: Filling, **changes: bool) -> tuple[EncodedRows, EncodeCounts]:
    """Fills as the only process and returns what reads the rows."""
    store, keys, counts = fill(replace(task, **changes), Processes(1))
    return EncodedRows(task.dataset, task.plan.index, store, keys, TextSource.CACHED), counts


def contents(cache: Path) -> dict[bytes, dict[str, torch.Tensor]]:
    """Returns all entries of a store by key."""
    from physedit.data_loaders.encoded_store import EncodedStore

    store = EncodedStore(cache)
    return {key.ljust(16, b"\0"): store.read(key.ljust(16, b"\0")) for key in {bytes(key) for key in store._keys}}


def same_contents(first: Path, second: Path) -> bool:
    one, two = contents(first), contents(second)
    return one.keys() == two.keys() and all(
        entry.keys() == two[key].keys() and all(torch.equal(value, two[key][name]) for name, value in entry.items())
        for key, entry in one.items()
    )


def micro_batches(
    task: Filling, encoded: EncodedRows | None = None, *, size: int, stop: int, num_workers: int = 0
) -> list[PositionedBatch]:
    """Reads a run's micro batches of ``size`` up to position ``stop``: from the cache, or live without one."""
    run = TrainingBatches(
        task.dataset, task.plan, share=Share(size), stop_position=stop, encoded=encoded, num_workers=num_workers
    )
    return list(run)
