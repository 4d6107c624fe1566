"""Copies of complete checkpoints in a bucket or on the hub, made in the background by rank 0."""

import logging
import queue
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from physedit.train.config import ConfigError

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SECONDS_AT_END = 1800.0
"""Ours: how long a finished run waits for its last copies."""
_HUB = "hf://"

Copy = Callable[[Path], None]
"""Copies a checkpoint's folder under its own name."""


def check_target(target: str | None) -> None:
    """Verifies that a copy can be asked for, without a connection.

    Raises:
        ConfigError: no such kind of place, or its package is not installed.
    """
    if target is None:
        return
    if target.startswith(_HUB):
        _hub_parts(target)
        return
    import fsspec  # type: ignore[import-untyped]

    protocol = target.split("://")[0] if "://" in target else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"checkpoint.upload_to={target} cannot be written: {error}. Use hf://USER/REPO, or a URL that fsspec knows "
            f"(s3://, gs://, file://) with its package installed."
        ) from error


class Uploads:
    """The queue of checkpoints to copy. A copy that fails is tried again with the next one; training goes on."""

    def __init__(self, target: str, copy: Copy | None = None) -> None:
        """Starts the thread.

        Args:
            target: ``hf://USER/REPO[/PATH]``, or a URL that fsspec knows.
            copy: instead of that target's own; for tests.
        """
        self._target = target
        self._copy = copy or (_to_hub(target) if target.startswith(_HUB) else _to_bucket(target))
        self._waiting: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._wake: queue.Queue[bool] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="physedit-upload", daemon=True)
        self._thread.start()

    def add(self, folder: Path) -> None:
        """Has the complete checkpoint ``folder`` copied."""
        with self._lock:
            self._waiting[folder.name] = folder
        self._wake.put(True)

    def waiting(self) -> set[str]:
        """Returns the names of checkpoints that are not copied yet: they must not be removed."""
        with self._lock:
            return set(self._waiting)

    def finish(self, seconds: float = SECONDS_AT_END) -> None:
        """Waits for the last copies, and names those that could not be made."""
        self._wake.put(False)
        self._thread.join(seconds)
        left = sorted(self.waiting())
        if left:
            logger.error("Not copied to %s: %s. They are in the run folder.", self._target, ", ".join(left))

    def _run(self) -> None:
        while True:
            goes_on = self._wake.get()
            with self._lock:
                folders = list(self._waiting.values())
            for folder in folders:
                self._try(folder)
            if not goes_on:
                return

    def _try(self, folder: Path) -> None:
        try:
            self._copy(folder)
        except Exception as error:  # whatever a client raises: the run must not end by it
            logger.warning("%s could not be copied to %s, and is tried again: %s", folder.name, self._target, error)
            return
        with self._lock:
            self._waiting.pop(folder.name, None)
        logger.info("%s is copied to %s.", folder.name, self._target)


def _to_bucket(target: str) -> Copy:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    system: Any
    system, root = url_to_fs(target)

    def copy(folder: Path) -> None:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        names.sort(key=lambda name: name == MANIFEST)  # last: without it the copy is not complete
        for name in names:
            place = f"{root}/{folder.name}/{name}"
            system.makedirs(place.rpartition("/")[0], exist_ok=True)
            system.put_file(str(folder / name), place)

    return copy


def _to_hub(target: str) -> Copy:
    from huggingface_hub import HfApi

    repo, path = _hub_parts(target)
    hub = HfApi()

    def copy(folder: Path) -> None:
        hub.upload_folder(
            repo_id=repo,
            folder_path=str(folder),
            path_in_repo=f"{path}/{folder.name}" if path else folder.name,
            commit_message=f"Add {folder.name}",
        )

    return copy


def _hub_parts(target: str) -> tuple[str, str]:
    parts = target.removeprefix(_HUB).strip("/").split("/")
    if len(parts) < 2 or not all(parts):
        raise ConfigError(
            f"checkpoint.upload_to={target} names no repository. Use hf://USER/REPO or hf://USER/REPO/PATH."
        )
    if find_spec("huggingface_hub") is None:
        raise ConfigError(f"checkpoint.upload_to={target} needs huggingface_hub, which is not installed.")
    return "/".join(parts[:2]), "/".join(parts[2:])
