"""Writing files so that a kill at any moment leaves either the old or the new content."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replaces ``path`` by ``text`` in one step: a reader sees the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def write_json(path: Path, value: object) -> None:
    """Writes ``value`` as indented JSON with ``write_text``; NaN is refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, object]]:
    """Yields the records of a JSON-lines file; a line cut by a kill at the end is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.endswith("\n"):
                yield json.loads(line)
