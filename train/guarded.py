"""How every command ends where it cannot go on: in one paragraph and an exit code, without a traceback."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from safetensors import SafetensorError

from physedit.train.config import ConfigError

EXIT_BAD_INPUT = 2
"""Exit code for input or configuration that cannot be used; nothing was lost."""


def guarded(action: Callable[[], object]) -> None:
    """Runs ``action``; input that cannot be used ends in one paragraph and exit code 2, without a traceback."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        _check_rank_variables()
        logging.basicConfig(level=logging.INFO if is_rank_0() else logging.WARNING, format=_log_format())
        for noisy in ("httpx", "httpx2", "accelerate", "datasets", "diffusers", "transformers"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        action()
    except ValueError as error:
        if not _is_for_the_user(error):
            raise
        fail(str(error), EXIT_BAD_INPUT)
    except OSError as error:
        found = f"{error}{room(error)}"
        fail(f"{found}. Finished checkpoints are untouched: free space or mend the path, and run it again.", 1)
    except SafetensorError as error:
        fail(
            f"A file of tensors could not be read or written: {error}. Finished checkpoints are untouched: free space "
            f"if the disk is full, get a damaged file again, and run it again.",
            1,
        )


def fail(message: str, exit_code: int) -> NoReturn:
    """Says ``message`` on the error stream, with the rank where there are several, and leaves."""
    rank = f" [rank {os.environ.get('RANK', '0')}]" if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"physedit{rank}: {message}", style="bold red", markup=False, highlight=False)
    raise SystemExit(exit_code)


def room(error: OSError) -> str:
    """Returns how much space is free, where a disk is full."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not isinstance(error.filename, str):
        return ""
    from physedit.eval_hooks.files import free_space

    return f" ({free_space(Path(error.filename))})"


def is_rank_0() -> bool:
    """True in a process without a launcher, and in the first of a launch."""
    return int(os.environ.get("RANK", "0")) == 0


def _is_for_the_user(error: ValueError) -> bool:
    """True for errors raised on purpose about input, all of them classes of ours; a bug keeps its traceback."""
    return type(error).__module__.startswith("physedit.")


def _check_rank_variables() -> None:
    """Refuses what no launcher sets, before anything reads it."""
    for name, least in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)):
        value = os.environ.get(name, str(least))
        if not value.isdecimal() or int(value) < least:
            raise ConfigError(
                f"{name}={value!r} in the environment is no whole number of at least {least}. A launcher such as "
                f"accelerate launch sets it; without one, unset it."
            )


def _log_format() -> str:
    return (
        "%(message)s"
        if int(os.environ.get("WORLD_SIZE", "1")) == 1
        else (f"[rank {os.environ.get('RANK', '0')}] %(message)s")
    )
