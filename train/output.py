"""Where a verb writes: checked before work is spent, and published whole."""

import glob
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from physedit.eval_hooks.files import DamagedFileError, nearest_existing, read_json
from physedit.train.config import ConfigError

logger = logging.getLogger(__name__)


def check_can_be_made(out: Path) -> None:
    """Verifies that ``out`` or its nearest existing parent is a folder that can be written; leaves nothing there.

    Raises:
        ConfigError: it is not.
    """
    nearest = nearest_existing(out)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out} cannot be written: {nearest} is no folder that can be. Choose another.")
    for missing in itertools.takewhile(lambda each: each != nearest, (out.absolute(), *out.absolute().parents)):
        _refuse_impossible(missing, out)
    try:
        # Permissions tell an administrator nothing, and nobody that a file system takes no files, as /proc.
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be written: {nearest} takes no file ({error.strerror}). Choose another."
        ) from error


def _refuse_impossible(missing: Path, out: Path) -> None:
    """Refuses what is not there because it is a link to nothing, or because no folder can be called so."""
    try:
        missing.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}. Choose another.") from error
    raise ConfigError(f"--out {out} cannot be written: {missing} is a link to nothing. Choose another, or mend it.")


def check_is_free(out: Path) -> None:
    """Verifies that nothing lies at ``out``, or an empty folder.

    Raises:
        ConfigError: something does, or it cannot be written there.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        kind = "is a file" if out.is_file() else "is a folder that is not empty"
        raise ConfigError(f"--out {out} {kind}, and nothing is overwritten. Choose another, or remove it.")
    check_can_be_made(out)


def check_is_own(out: Path, record: str, identity: str, *, other: str) -> None:
    """Verifies that ``out`` is free, or holds what has this very identity and may be made again.

    Args:
        out: a folder.
        record: the name of the file in it that tells its ``identity``.
        identity: a hash of all that decides what is made.
        other: what it is called if it has another identity.

    Raises:
        ConfigError: it holds something else, or it cannot be written there.
    """
    check_can_be_made(out)
    if not out.is_dir() or not any(out.iterdir()):
        return
    try:
        is_same = read_json(out / record).get("identity") == identity
    except (OSError, DamagedFileError):
        is_same = False
    if not is_same:
        what = other if (out / record).is_file() else "other files"
        raise ConfigError(f"--out {out} holds {what}, and nothing is overwritten. Choose another folder.")


@contextmanager
def published(out: Path) -> Iterator[Path]:
    """Yields a path beside ``out`` at which to make a file or folder; it is renamed to ``out`` at the end.

    If the block fails, what it made is removed. Files go into a folder that is there already one by one.
    """
    out = out.resolve()
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        logger.warning("%s is what a killed process left, or is being written by another. Remove it if none is.", left)
    try:
        yield partial
        if out.is_dir() and any(out.iterdir()):
            for part in sorted(partial.iterdir()):
                part.replace(out / part.name)
        else:
            partial.replace(out)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
