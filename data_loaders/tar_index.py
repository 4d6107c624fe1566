"""Where the members of a tar shard lie: found once, kept in the cache of HF ``datasets``.

Shape legend: N samples, P kinds of part.
"""

import logging
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from physedit.data_loaders.rows import digest, stamp
from physedit.data_loaders.sample import DatasetLayoutError
from physedit.data_loaders.tables import is_refusal

logger = logging.getLogger(__name__)

ABSENT = -1
_BLOCK = 512
_FOLDER = "physedit_tar_index"


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The members of a shard.

    Attributes:
        keys: of the N samples, in the order of their first members.
        parts: the P parts that occur, in lower case.
        places: int64 ``[N, P, 2]``, offset and size in bytes; ``ABSENT`` where a sample lacks a part.
    """

    keys: tuple[str, ...]
    parts: tuple[str, ...]
    places: NDArray[np.int64]


def index_of(shard: Path) -> ShardIndex:
    """Returns the members of ``shard``, from the kept index if the shard has not changed since.

    A member's name up to the first dot behind its last slash is the key, the rest in lower case is the part. Folders,
    and files whose name begins with a dot, are passed over.

    Raises:
        DatasetLayoutError: no tar file, a compressed or damaged one, or a part that a key has twice.
    """
    kept = _index_file(shard)
    if kept.is_file():
        with np.load(kept) as arrays:
            return ShardIndex(tuple(arrays["keys"].tolist()), tuple(arrays["parts"].tolist()), arrays["places"])
    started = time.monotonic()
    index = _packed(_scan(shard))
    _write(kept, index)
    logger.info("Found %d samples in %s in %.1f s.", len(index.keys), shard.name, time.monotonic() - started)
    return index


def _scan(shard: Path) -> dict[str, dict[str, tuple[int, int]]]:
    members: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        # Without compression alone a member can be read by its offset.
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                if not member.isfile() or name.startswith("."):
                    continue
                stem, _, part = name.partition(".")
                parts = members.setdefault(f"{folder}/{stem}" if folder else stem, {})
                if part.lower() in parts:
                    raise DatasetLayoutError(
                        f"{shard} holds '{member.name}' twice, capital letters aside. Write the shard again."
                    )
                parts[part.lower()] = (member.offset_data, member.size)
            _refuse_cut(shard, tar.offset, members)
    except (tarfile.TarError, OSError, EOFError) as error:
        if is_refusal(error):
            raise
        raise DatasetLayoutError(
            f"{shard} is no readable tar file: {error}. Shards must be whole and not compressed."
        ) from error
    return members


def _refuse_cut(shard: Path, end: int, members: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
    """Refuses a shard that ends early or has a hole: tarfile stops there without a word."""
    last = max((offset + size for parts in members.values() for offset, size in parts.values()), default=0)
    with shard.open("rb") as stream:
        stream.seek(end)
        block = stream.read(_BLOCK)
    if last > shard.stat().st_size or any(block):
        raise DatasetLayoutError(f"{shard} is damaged at byte {end}. Download or write it again.")


def _packed(members: Mapping[str, Mapping[str, tuple[int, int]]]) -> ShardIndex:
    parts = tuple(dict.fromkeys(part for found in members.values() for part in found))
    places = np.full((len(members), len(parts), 2), ABSENT, dtype=np.int64)
    for sample, found in zip(places, members.values(), strict=True):
        for part, place in found.items():
            sample[parts.index(part)] = place
    return ShardIndex(tuple(members), parts, places)


def _index_file(shard: Path) -> Path:
    from datasets import config

    return Path(config.HF_DATASETS_CACHE) / _FOLDER / f"{digest([str(shard.resolve()), stamp(shard)])}.npz"


def _write(file: Path, index: ShardIndex) -> None:
    """Writes the index whole or not at all: other processes may look for it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
        np.savez(stream, keys=np.array(index.keys), parts=np.array(index.parts), places=index.places)
    Path(stream.name).replace(file)
