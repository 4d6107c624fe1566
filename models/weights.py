"""Where the weights of a backbone come from, and what names them."""

import hashlib
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from physedit.models.pipeline_folder import INDEX

TOY = "toy"
RANDOM_TINY = "random_tiny"
RANDOM_RELEASED = "random_released"
"""Random weights of the released sizes, built on the GPU."""
_TOY_FOLDERS = Path(__file__).parent / "toy"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_CHUNK_BYTES = 2**24


def find_weights(weights: str, toy: str) -> Path | str:
    """Returns the folder that ``weights`` stands for, or ``weights`` itself if it can only be a hub id.

    Args:
        weights: a pipeline folder, a hub id with or without ``@revision``, ``toy``, or ``random_released``, which
            stands for itself.
        toy: name of the backbone's folder under models/toy.

    Raises:
        ValueError: no such folder, and no hub id either.
    """
    if weights == RANDOM_RELEASED:
        return weights
    folder = _TOY_FOLDERS / toy if weights == TOY else Path(weights).expanduser()
    if (folder / INDEX).is_file():
        return folder.resolve()
    if weights != TOY and not folder.exists() and _HUB_ID.fullmatch(weights):
        return weights
    state = f"exists but holds no {INDEX}" if folder.exists() else "does not exist"
    raise ValueError(
        f"backbone.weights is '{weights}', but the folder {folder} {state}. Give the folder of a diffusers "
        f"pipeline (one with {INDEX}), a hub id such as black-forest-labs/FLUX.1-Kontext-dev, '{TOY}' for the "
        f"small editor that comes with the package, or '{RANDOM_TINY}' or '{RANDOM_RELEASED}' for random weights."
    )


def split_revision(weights: str) -> tuple[str, str | None]:
    """Returns the hub id and the revision (branch, tag or commit) of ``id@revision``; None without one."""
    hub_id, _, revision = weights.partition("@")
    return hub_id, revision or None


def cached_snapshot(weights: str) -> Path | None:
    """Returns the local snapshot folder of a hub id, named after its commit; None if it is not in the cache."""
    from huggingface_hub import try_to_load_from_cache

    hub_id, revision = split_revision(weights)
    index = try_to_load_from_cache(hub_id, INDEX, revision=revision)
    return Path(index).parent if isinstance(index, str) else None


def name_weights(weights: Path | str, parts: Collection[str] | None = None) -> str:
    """Returns what tells stored weights from others: the hash of a folder's files, or hub id and commit.

    Args:
        weights: what ``find_weights`` returned.
        parts: files and folders right below a local folder that count; None for all.
    """
    if isinstance(weights, Path):
        return hash_folder(weights, parts)
    snapshot = cached_snapshot(weights)
    return weights if snapshot is None else f"{split_revision(weights)[0]}@{snapshot.name}"


def hash_folder(folder: Path, parts: Collection[str] | None = None) -> str:
    """Returns the SHA-256 over the names and bytes of all files under ``folder``, or of those under its ``parts``.

    A file's hash is kept for this process while path, size and modification time stay the same.
    """
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if parts is not None and name.split("/")[0] not in parts:
            continue
        stat = file.stat()
        digest.update(f"{name}\0{_hash_file(file, stat.st_size, stat.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


def hash_modules(*modules: nn.Module) -> str:
    """Returns the SHA-256 over the names, dtypes and bytes of all weights."""
    digest = hashlib.sha256()
    for module in modules:
        for name, value in sorted(module.state_dict().items()):
            digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _hash_file(file: Path, size_bytes: int, modified_ns: int) -> str:
    del size_bytes, modified_ns  # part of the cache's key alone
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
