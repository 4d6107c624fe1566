"""A stand-in for a disk that becomes full while a run adds lines to a file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def fill_disk(patch: pytest.MonkeyPatch, name: str, size: int) -> None:
    """From now on, what is added to files called ``name`` fits up to ``size`` bytes: of a line, its beginning."""
    whole: Callable[..., Any] = Path.open

    def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        stream = whole(path, mode, *rest, **options)
        if mode != "a" or path.name != name:
            return stream
        write = stream.write

        def written(text: str) -> int:
            room = size - path.stat().st_size
            if len(text) <= room:
                return int(write(text))
            write(text[:room])
            stream.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        stream.write = written
        return stream

    patch.setattr(Path, "open", opened)
