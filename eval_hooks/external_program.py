"""Starting a program that measures, waiting for it, and reading what it answers."""

import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STDOUT, STDERR = "stdout.txt", "stderr.txt"
_OF_THE_LAUNCH = re.compile(
    r"(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|MASTER_ADDR|MASTER_PORT)$|"
    r"(GROUP_|ROLE_|TORCHELASTIC_|TORCH_NCCL_|ACCELERATE_|FSDP_|DEEPSPEED_)"
)
"""Variables that would have a program that uses torch join the run's own processes."""
_METRIC = re.compile(r"[\w.-]+(/[\w.-]+)*")
_LOOK_EVERY_S = 0.2
_GRACE_S = 5.0
"""Between asking a program to end and ending it."""
_TAIL_BYTES = 2000
_MOST_OF_A_LINE = 1 << 20
"""Bytes of the output in which its last line is looked for."""


class CommandFailed(ValueError):
    """A program that was to evaluate did not, or cannot be started."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric as a program tells it; ``n`` is 0 where it does not tell how many items are behind it."""

    value: float
    n: int


def run_program(
    argv: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    *,
    timeout_s: float,
    progress: Callable[[int, int], None],
) -> str:
    """Runs a program to its good end and returns the last line that it printed; its output is kept in ``folder``.

    It gets a process group of its own, which is ended when the time is up or when ``progress`` raises.

    Args:
        argv: program and arguments.
        variables: are added to its environment; those by which processes of a launch find each other are not in it.
        folder: exists; receives ``stdout.txt`` and ``stderr.txt``.
        timeout_s: longest run.
        progress: called with (seconds so far, timeout in seconds) about every second.

    Raises:
        CommandFailed: it cannot be started, ended with another code than 0, or took too long.
    """
    environment = {name: value for name, value in os.environ.items() if not _OF_THE_LAUNCH.match(name)}
    with (folder / STDOUT).open("wb") as out, (folder / STDERR).open("wb") as errors:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**environment, **variables},
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailed(f"{argv[0]} cannot be started: {error}.") from error
        try:
            code = _wait(process, timeout_s, progress)
        except BaseException:
            _end(process)
            raise
    if code is None:
        _end(process)
        raise CommandFailed(
            f"{' '.join(argv)} took longer than timeout_s={timeout_s:g} and was ended. Its output is in {folder}."
            f"{tail_of(folder)}"
        )
    if code != 0:
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise CommandFailed(f"{' '.join(argv)} ended with {what}. Its output is in {folder}.{tail_of(folder)}")
    return _last_line(folder / STDOUT)


def parse_answer(line: str) -> dict[str, Reading]:
    """Returns the metrics of an answer. Pure.

    Raises:
        ValueError: it is no JSON object, an empty one, or holds something else than numbers.
    """
    try:
        answer = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f'expected a JSON object such as {{"score": 0.5}}, found {_short(line)}') from error
    if not isinstance(answer, dict) or not answer:
        raise ValueError(f"expected a JSON object with at least one metric, found {_short(line)}")
    return {name: _reading(name, value) for name, value in answer.items()}


def tail_of(folder: Path) -> str:
    """Returns the end of a program's standard error as a sentence, empty if it said nothing."""
    text = _tail(folder / STDERR, _TAIL_BYTES).decode("utf-8", "replace").strip()
    return f" Its stderr ends: {text}" if text else ""


def _reading(name: str, value: object) -> Reading:
    if not _METRIC.fullmatch(name):
        raise ValueError(f"the name {name!r} must be made of letters, digits, '_', '-' and '.', with '/' between parts")
    told: Mapping[str, object] = value if isinstance(value, dict) else {"value": value, "n": 0}
    if told.keys() != {"value", "n"}:
        raise ValueError(f"{name} holds {', '.join(told) or 'nothing'}; expected value and n")
    value, n = told["value"], told["n"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; expected a finite number")
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"n of {name} is {n!r}; expected a whole number of at least 0")
    return Reading(float(value), n)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, progress: Callable[[int, int], None]) -> int | None:
    """Returns the exit code, or None when the time is up."""
    started = time.monotonic()
    told_s = 0
    while (passed_s := time.monotonic() - started) < timeout_s:
        try:
            return process.wait(min(_LOOK_EVERY_S, timeout_s - passed_s))
        except subprocess.TimeoutExpired:
            if passed_s >= told_s + 1:
                told_s = int(passed_s)
                progress(told_s, math.ceil(timeout_s))
    return process.poll()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the program and what it started in its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def _last_line(path: Path) -> str:
    lines = _tail(path, _MOST_OF_A_LINE).decode("utf-8", "replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")


def _tail(path: Path, num_bytes: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - num_bytes))
        return stream.read()


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}…") if text else "nothing"
