"""Writes the embedded world as parquet files in the published schemas of PICA-100K and PICABench.

    FOLDER/train/train-00000.parquet                   pairs with physical targets, PICA-100K's seven columns
    FOLDER/naive/train-00000.parquet                   on request: the same pairs with naive targets
    FOLDER/benchmark/picabench-00000-of-00001.parquet  PICABench's ten columns
    FOLDER/benchmark/targets.parquet                   physical targets for report sheets; no judge sees them
    FOLDER/world.json                                  seeds, counts, and hashes of the drawing and of every file

Laws are dealt in turn: row i obeys law i modulo their number. Row i of the training pairs is drawn with the even scene
seed ``2 * (seed * 1,000,000 + i)``, row i of the benchmark with the odd one after it. So no scene of any training file
is in any benchmark, whatever the seeds and counts, and worlds of different seeds share no scene.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from physedit.data_loaders.sample import DatasetLayoutError
from physedit.data_loaders.scenes import schemas
from physedit.data_loaders.scenes.scene import LAWS, draw_scene

logger = logging.getLogger(__name__)

_SCENES_PER_SEED = 1_000_000
_CHUNK = 100
"""Scenes per job and rows per parquet row group; Hugging Face writes pictures in groups of 100 as well."""

_Job = tuple[int, str, int]
"""Row, law and scene seed."""
_Rows = TypeVar("_Rows")


class Target(StrEnum):
    """Which target a training file holds."""

    PHYSICAL = "physical"
    """The picture under the law."""
    NAIVE = "naive"
    """The picture of an editor that knows no physics."""


_FOLDERS = {Target.PHYSICAL: "train", Target.NAIVE: "naive"}


def train_seeds(seed: int, count: int) -> list[int]:
    """The scene seeds of a world's training pairs, all even.

    Raises:
        ValueError: a negative seed, or more scenes than one seed has.
    """
    return [2 * number for number in _numbers(seed, count)]


def benchmark_seeds(seed: int, count: int) -> list[int]:
    """The scene seeds of a world's benchmark, all odd.

    Raises:
        ValueError: a negative seed, or more scenes than one seed has.
    """
    return [2 * number + 1 for number in _numbers(seed, count)]


def _numbers(seed: int, count: int) -> range:
    if seed < 0:
        raise ValueError(f"seed is {seed}; the embedded world takes whole numbers from 0 on")
    if not 1 <= count <= _SCENES_PER_SEED:
        raise ValueError(f"{count:,} scenes were asked for; one seed has 1 to {_SCENES_PER_SEED:,}")
    return range(seed * _SCENES_PER_SEED, seed * _SCENES_PER_SEED + count)


def write_training_file(
    path: Path, *, seeds: Sequence[int], laws: Sequence[str] = LAWS, target: Target, workers: int = 1
) -> None:
    """Writes one training pair per scene seed in PICA-100K's seven columns, laws dealt in turn.

    The file appears whole or not at all. With more than one worker, processes are spawned.

    Raises:
        ValueError: no seeds, or a law that the embedded world does not draw.
    """
    with _replacing(path) as unfinished, pq.ParquetWriter(unfinished, schemas.TRAINING) as writer:
        for rows in _mapped(partial(_training_rows, target=target), _dealt(seeds, laws), workers):
            writer.write_table(pa.Table.from_pylist(rows, schemas.TRAINING))


def write_benchmark_file(path: Path, *, seeds: Sequence[int], laws: Sequence[str] = LAWS, workers: int = 1) -> None:
    """Writes one item per scene seed in PICABench's columns, laws dealt in turn, and ``targets.parquet`` beside it.

    Each file appears whole or not at all. With more than one worker, processes are spawned.

    Raises:
        ValueError: no seeds, or a law that the embedded world does not draw.
    """
    with (
        _replacing(path.with_name("targets.parquet")) as unfinished_targets,
        _replacing(path) as unfinished,
        pq.ParquetWriter(unfinished, schemas.BENCHMARK) as writer,
        pq.ParquetWriter(unfinished_targets, schemas.TARGETS) as target_writer,
    ):
        for items, targets in _mapped(_benchmark_rows, _dealt(seeds, laws), workers):
            writer.write_table(pa.Table.from_pylist(items, schemas.BENCHMARK))
            target_writer.write_table(pa.Table.from_pylist(targets, schemas.TARGETS))


def write_world(
    folder: Path,
    *,
    num_train: int,
    num_benchmark: int,
    seed: int,
    workers: int = 1,
    targets: Sequence[Target] = (Target.PHYSICAL,),
) -> None:
    """Writes training pairs, benchmark and ``world.json``; the folder appears whole or not at all.

    Args:
        folder: does not exist yet.
        num_train: training pairs.
        num_benchmark: benchmark items.
        seed: names the world; scenes of different seeds differ.
        workers: processes that draw.
        targets: which training files to write.

    Raises:
        FileExistsError: the folder exists.
        ValueError: a seed or count that the world has not.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists; delete it or name another folder")
    trained, judged = train_seeds(seed, num_train), benchmark_seeds(seed, num_benchmark)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for target in targets:
            file = unfinished / _FOLDERS[target] / "train-00000.parquet"
            write_training_file(file, seeds=trained, target=target, workers=workers)
        bench = unfinished / "benchmark" / "picabench-00000-of-00001.parquet"
        write_benchmark_file(bench, seeds=judged, workers=workers)
        note = {
            **_request(num_train, num_benchmark, seed),
            "laws": list(LAWS),
            "train_per_law": dict(Counter(law for _, law, _ in _dealt(trained, LAWS))),
            "benchmark_per_law": dict(Counter(law for _, law, _ in _dealt(judged, LAWS))),
            "train_scene_seeds": [trained[0], trained[-1]],
            "benchmark_scene_seeds": [judged[0], judged[-1]],
            "files": _hashes(unfinished),
        }
        (unfinished / "world.json").write_text(json.dumps(note, indent=2) + "\n")
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    logger.info("Wrote %d training pairs and %d benchmark scenes to %s", num_train, num_benchmark, folder)


def ensure_world(folder: Path, *, num_train: int, num_benchmark: int, seed: int, workers: int = 1) -> None:
    """Makes sure that the folder holds this world: writes it if the folder is missing, and checks it if not.

    Processes that do this at the same time end with one whole folder.

    Raises:
        DatasetLayoutError: the folder holds something else, or a file that was changed since.
        ValueError: a seed or count that the world has not.
    """
    if not folder.exists():
        try:
            write_world(folder, num_train=num_train, num_benchmark=num_benchmark, seed=seed, workers=workers)
        except OSError:
            if not (folder / "world.json").exists():
                raise
    _check_world(folder, _request(num_train, num_benchmark, seed))


def _check_world(folder: Path, request: dict[str, object]) -> None:
    remedy = "Delete the folder, or name another with scenes.folder=..."
    note = folder / "world.json"
    if not note.is_file():
        raise DatasetLayoutError(f"{folder} exists but is no embedded world: it has no world.json. {remedy}")
    found = _read_note(note, remedy)
    differing = [
        f"{key} {found.get(key)} instead of {value}" for key, value in request.items() if found.get(key) != value
    ]
    if differing:
        raise DatasetLayoutError(f"{folder} holds another embedded world: {', '.join(differing)}. {remedy}")
    files = found["files"]
    assert isinstance(files, dict)  # _read_note has seen to it
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise DatasetLayoutError(f"{folder} lacks {', '.join(missing)}. {remedy}")
    for name, digest in files.items():
        if _hash(folder / name) != digest:
            raise DatasetLayoutError(
                f"{folder / name} was changed after it was written: its hash is not the one in {note}. Remove the "
                f"folder {folder} to write it anew."
            )


def _read_note(note: Path, remedy: str) -> dict[str, object]:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetLayoutError(f"{note} is damaged: not JSON ({error}). {remedy}") from error
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict) or not found["files"]:
        raise DatasetLayoutError(f"{note} is damaged: it names no files of an embedded world. {remedy}")
    return found


def _request(num_train: int, num_benchmark: int, seed: int) -> dict[str, object]:
    return {"seed": seed, "num_train": num_train, "num_benchmark": num_benchmark, "drawing": drawing_hash()}


@cache
def drawing_hash() -> str:
    """A hash of what is drawn, asked and said in two scenes of every law; it changes when the world does."""
    digest = hashlib.sha256()
    for law in LAWS:
        for seed in (0, 1):
            scene = draw_scene(law, seed)
            for picture in (scene.source, scene.physical, scene.naive):
                digest.update(picture.tobytes())
            prompts = (scene.superficial_prompt, scene.intermediate_prompt, scene.explicit_prompt)
            digest.update(repr((scene.scene_id, prompts, scene.edit_areas, scene.questions)).encode())
    return digest.hexdigest()[:16]


def _dealt(seeds: Sequence[int], laws: Sequence[str]) -> list[_Job]:
    unknown = [law for law in laws if law not in LAWS]
    if unknown or not laws:
        raise ValueError(f"laws are {list(laws)}; the embedded world draws {', '.join(LAWS)}")
    if not seeds:
        raise ValueError("no scene seeds were given; a file needs at least one row")
    return [(row, laws[row % len(laws)], seed) for row, seed in enumerate(seeds)]


def _mapped(draw: Callable[[list[_Job]], _Rows], jobs: list[_Job], workers: int) -> Iterator[_Rows]:
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    if workers <= 1 or len(chunks) == 1:
        yield from map(draw, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(min(workers, len(chunks))) as pool:
        yield from pool.imap(draw, chunks)


def _training_rows(jobs: list[_Job], *, target: Target) -> list[schemas.Row]:
    scenes = (draw_scene(law, seed) for _, law, seed in jobs)
    if target is Target.NAIVE:
        return [schemas.training_row(scene, scene.naive) for scene in scenes]
    return [schemas.training_row(scene, scene.physical) for scene in scenes]


def _benchmark_rows(jobs: list[_Job]) -> tuple[list[schemas.Row], list[schemas.Row]]:
    scenes = [(row, draw_scene(law, seed)) for row, law, seed in jobs]
    items = [schemas.benchmark_row(scene) for _, scene in scenes]
    return items, [schemas.target_row(scene, row) for row, scene in scenes]


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a name beside the path to write to; the file takes the path's place once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*.parquet"))
    return {file.relative_to(folder).as_posix(): _hash(file) for file in files}


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
