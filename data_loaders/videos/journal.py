"""What a build has done so far, one JSON line a piece of work, so that a killed build goes on where it was."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class BuildError(ValueError):
    """A set cannot be built as asked; the message is one paragraph for the user."""


class Journal:
    """Finished pieces of work by key, in a file that only grows. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; a last line that a kill cut off is taken away."""
        self._lock = threading.Lock()
        self._done: dict[str, Mapping[str, object]] = {}
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.decode().split("\n")[:-1], start=1):
            self._take(path, number, line)
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        self._stream = path.open("a", encoding="utf-8")

    def get(self, key: str) -> Mapping[str, object] | None:
        """Returns the result under ``key``, or None if that work is yet to be done."""
        return self._done.get(key)

    def add(self, key: str, result: Mapping[str, object]) -> None:
        """Keeps a result; it survives a kill of the process from here on."""
        line = json.dumps({"key": key, "result": result}, ensure_ascii=False, allow_nan=False)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()
            self._done[key] = result

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    def _take(self, path: Path, number: int, line: str) -> None:
        try:
            entry = json.loads(line)
            self._done[str(entry["key"])] = entry["result"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise BuildError(
                f"{path}, line {number} is damaged ({error}). Delete the file to redo its work."
            ) from error


@contextmanager
def only_builder(folder: Path) -> Iterator[None]:
    """Keeps a second build out of ``folder`` for the time being; the lock ends with the process, however that ends.

    Raises:
        BuildError: another process is building there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BuildError(
                f"Another process is building in {folder.parent}. Wait for it, or name another --out."
            ) from error
        yield


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a name beside ``path`` to write to; the file takes its place once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def key_of(*parts: object) -> str:
    """Returns a short digest of values that JSON can hold."""
    text = json.dumps(parts, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
