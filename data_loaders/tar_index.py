"""Where the members of a tar shard lie: found once, kept in the cache of HF ``datasets``."""

import json
import logging
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from physedit.data_loaders.rows import digest, stamp
from physedit.data_loaders.sample import DatasetLayoutError

logger = logging.getLogger(__name__)

Members = Mapping[str, Mapping[str, tuple[int, int]]]
"""Of each key, in the order of the shard, each part's offset and size in bytes."""

_BLOCK = 512
_FOLDER = "physedit_tar_index"


def members_of(shard: Path) -> Members:
    """Returns the members of ``shard``, from the kept index if the shard has not changed since.

    A member's name up to the first dot behind its last slash is the key, the rest in lower case is the part. Folders,
    and files whose name begins with a dot, are passed over.

    Raises:
        DatasetLayoutError: no tar file, a compressed or damaged one, or a part that a key has twice.
    """
    kept = _index_file(shard)
    if kept.is_file():
        found: dict[str, dict[str, list[int]]] = json.loads(kept.read_text("utf-8"))
        return {key: {part: (at[0], at[1]) for part, at in parts.items()} for key, parts in found.items()}
    started = time.monotonic()
    members = _scan(shard)
    _write(kept, members)
    logger.info("Found %d samples in %s in %.1f s.", len(members), shard.name, time.monotonic() - started)
    return members


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
        raise DatasetLayoutError(
            f"{shard} is no readable tar file: {error}. Shards must be whole and not compressed."
        ) from error
    return members


def _refuse_cut(shard: Path, end: int, members: Members) -> None:
    """Refuses a shard that ends early or has a hole: tarfile stops there without a word."""
    last = max((offset + size for parts in members.values() for offset, size in parts.values()), default=0)
    with shard.open("rb") as stream:
        stream.seek(end)
        block = stream.read(_BLOCK)
    if last > shard.stat().st_size or any(block):
        raise DatasetLayoutError(f"{shard} is damaged at byte {end}. Download or write it again.")


def _index_file(shard: Path) -> Path:
    from datasets import config

    return Path(config.HF_DATASETS_CACHE) / _FOLDER / f"{digest([str(shard.resolve()), stamp(shard)])}.json"


def _write(file: Path, members: Members) -> None:
    """Writes the index whole or not at all: other processes may look for it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as stream:
        json.dump(members, stream)
    Path(stream.name).replace(file)
