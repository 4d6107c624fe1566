"""Lines that a run adds to its records: whole or not at all, and a full disk is told by file and content."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from physedit.eval_hooks.files import free_space, json_line


class RecordNotWritten(OSError):
    """A line could not be added; the message names what it tells, the file, cause and the space that is free there."""


def add_line(path: Path, row: Mapping[str, object], what: str) -> None:
    """Adds ``row`` as a line to a file of JSON lines; half a character is written as its escape.

    Args:
        path: the file, made if it is not there.
        row: what the line holds.
        what: what it tells, for the message, such as ``the numbers of step 5``.

    Raises:
        RecordNotWritten: the disk is full or not writable; the file is as it was.
    """
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(json_line(row))
    except OSError as error:
        with suppress(OSError):  # a part of the line that stays is left out by every reader
            os.truncate(path, size)
        raise RecordNotWritten(f"{path} could not take {what}: {error}. {free_space(path.parent)}") from error
