"""Data sets on the Hugging Face hub: ``hf://datasets/OWNER/NAME@REVISION``, optionally with a folder behind it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physedit.data_loaders.sample import DatasetLayoutError

PREFIX = "hf://datasets/"

_ADDRESS = re.compile(r"hf://datasets/(?P<name>[^/@]+/[^/@]+)@(?P<revision>[^/]+)(?:/(?P<folder>.+))?")
_REMEDY = f"Write {PREFIX}OWNER/NAME@REVISION, where REVISION is a commit hash, or a tag or branch that may move."


@dataclass(frozen=True, slots=True)
class HubSet:
    """A data set at a revision."""

    name: str
    revision: str
    folder: str = ""

    @property
    def address(self) -> str:
        """The address that ``fsspec`` opens."""
        return f"{PREFIX}{self.name}@{self.revision}" + (f"/{self.folder}" if self.folder else "")


def parse_hub(path: str) -> HubSet:
    """Returns what a hub address names.

    Raises:
        ValueError: it has another form; a revision is required, since a run must say what it was trained on.
    """
    match = _ADDRESS.fullmatch(path.rstrip("/"))
    if match is None:
        raise ValueError(f"data.path={path} is no address of a data set on the hub. {_REMEDY}")
    return HubSet(match["name"], match["revision"].replace("%2F", "/"), match["folder"] or "")


def download(hub_set: HubSet, patterns: Sequence[str]) -> Path:
    """Returns the local folder of a data set, downloaded once into the hub's cache and kept there by commit.

    Processes that ask at once wait for each other. With ``HF_HUB_OFFLINE=1`` only the cache is looked at.

    Args:
        hub_set: what to download.
        patterns: names of the files to download, below the set's folder.

    Raises:
        DatasetLayoutError: no such set or revision, no network, or no access.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    below = f"{hub_set.folder}/" if hub_set.folder else ""
    try:
        folder = snapshot_download(
            hub_set.name,
            repo_type="dataset",
            revision=hub_set.revision,
            allow_patterns=[f"{below}{pattern}" for pattern in patterns],
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DatasetLayoutError(
            f"{hub_set.address} cannot be downloaded: {reason} Check name, revision, network and `hf auth login`; a "
            "set on this machine is read from its folder."
        ) from error
    return Path(folder) / hub_set.folder


def parquet_addresses(hub_set: HubSet) -> tuple[str, ...]:
    """Returns the addresses of a set's ``train-*.parquet`` files, by name, without downloading them.

    Raises:
        DatasetLayoutError: the set cannot be listed, or has no such file.
    """
    import fsspec  # type: ignore[import-untyped]

    return list_parquet(fsspec.filesystem("hf"), hub_set.address.removeprefix("hf://"), "hf://")


def list_parquet(files: Any, folder: str, scheme: str) -> tuple[str, ...]:
    """Returns the ``train-*.parquet`` files of ``folder`` or of its folder ``data``, by name, each with its scheme.

    Args:
        files: an ``fsspec`` file system; fsspec ships no types.
        folder: in that file system.
        scheme: what stands before its names in an address.

    Raises:
        DatasetLayoutError: the folder cannot be listed, or has no such file.
    """
    try:
        for pattern in ("data/train-*.parquet", "train-*.parquet"):
            found = sorted(str(name) for name in files.glob(f"{folder}/{pattern}"))
            if found:
                return tuple(f"{scheme}{name}" for name in found)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DatasetLayoutError(f"{scheme}{folder} cannot be listed: {reason}") from error
    raise DatasetLayoutError(f"{scheme}{folder} holds no data/train-*.parquet and no train-*.parquet.")
