"""Opening a picture file, and the reason why one cannot be."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from physedit.data_loaders.problems import RowProblem


class NoRegularFile(ValueError):
    """The path leads to a pipe, a socket or a device, which may never end."""


def open_picture(path: Path) -> BinaryIO:
    """Returns the open file; does not wait for somebody to write into a named pipe.

    Raises:
        NoRegularFile: it is neither a file nor a folder.
        OSError: it cannot be opened, or is a folder.
        ValueError: the name is none that a file can have.
    """
    return open(path, "rb", opener=_opened_at_once)


def problem_of(error: OSError | ValueError) -> RowProblem:
    """Returns why a picture file could not be opened or read."""
    if isinstance(error, NoRegularFile):
        return RowProblem.UNREADABLE
    # A name with a null sign, or one that the locale cannot spell, is a ValueError.
    is_no_file = not isinstance(error, OSError) or isinstance(error, _NO_FILE) or error.errno in _NO_NAME
    return RowProblem.MISSING_FILE if is_no_file else RowProblem.NOT_READABLE


_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NO_NAME = frozenset({errno.ENAMETOOLONG, errno.ELOOP})


def _opened_at_once(path: str, flags: int) -> int:
    number = os.open(path, flags | os.O_NONBLOCK)  # says nothing to a file; a pipe without a writer opens at once
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return number
    os.close(number)
    raise NoRegularFile(f"it is a {_kind(mode)}, no file")


def _kind(mode: int) -> str:
    return "named pipe" if stat.S_ISFIFO(mode) else "device"
