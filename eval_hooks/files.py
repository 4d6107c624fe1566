"""Files of a run: written whole or not at all, hashed, and read with a message that names them.

Shape legend: H W pixels.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from torch import Tensor

from physedit.data_loaders.geometry import as_image

REDO = "Delete the file to redo it."
"""What helps where a run makes a damaged file again."""
_HALVES = "backslashreplace"
"""UTF-8 has no lone surrogates, which a model may write; their escape is what JSON has for them."""


class DamagedFileError(ValueError):
    """A file of a run cannot be read back: it was changed, cut off or written by something else."""


def write_bytes(path: Path, content: bytes) -> None:
    """Writes ``path`` so that a reader sees the old file or the whole new one, also after a crash of the machine.

    Raises:
        OSError: with the file's name, also where the system gives none, as for a disk that is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` as UTF-8, whole or not at all; half a character is written as its escape."""
    write_bytes(path, text.encode(errors=_HALVES))


def write_json(path: Path, value: object) -> None:
    """Writes ``value`` as indented JSON, whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(errors=_HALVES))


def write_json_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Writes one JSON object a line, whole or not at all."""
    write_bytes(path, "".join(json_line(row) for row in rows).encode(errors=_HALVES))


def json_line(row: Mapping[str, object] | Sequence[object]) -> str:
    """Returns ``row`` as one line of JSON with its line end; the order of its keys counts."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path, *, remedy: str = REDO) -> dict[str, object]:
    """Returns the object of a JSON file.

    Args:
        path: the file.
        remedy: what the message says to do about a damaged one.

    Raises:
        DamagedFileError: no JSON, or something other than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: not JSON ({error}). {remedy}") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}. {remedy}")
    return value


def read_json_lines(path: Path, required: Sequence[str] = (), *, remedy: str = REDO) -> list[dict[str, object]]:
    """Returns the objects of a file of JSON lines; a last line cut off by a kill is left out.

    Args:
        path: the file.
        required: keys that every object must have.
        remedy: what the message says to do about a damaged file.

    Raises:
        DamagedFileError: a line other than the last is no JSON, or a line is no object or lacks a key.
    """
    try:
        # Not splitlines: strings may hold other separators, such as U+2028.
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path} is damaged: not UTF-8 ({error}). {remedy}") from error
    rows: list[dict[str, object]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise _damaged_line(path, number, f"not JSON ({error})", remedy) from error
        if not isinstance(row, dict):
            raise _damaged_line(path, number, f"expected a JSON object, found {type(row).__name__}", remedy)
        if missing := [key for key in required if key not in row]:
            found = f"{', '.join(missing)} missing, found {', '.join(row) or 'nothing'}"
            raise _damaged_line(path, number, found, remedy)
        rows.append(row)
    return rows


def read_steps(path: Path, required: Sequence[str] = (), *, remedy: str) -> list[dict[str, object]]:
    """Returns the objects of a file of JSON lines that each tell of a ``step``, an int.

    Args:
        path: the file.
        required: further keys that every object must have.
        remedy: what the message says to do about a damaged file.

    Raises:
        DamagedFileError: as ``read_json_lines``, or a step is no whole number.
    """
    rows = read_json_lines(path, ("step", *required), remedy=remedy)
    for number, row in enumerate(rows, start=1):
        if type(row["step"]) is not int:
            raise _damaged_line(path, number, f"its step is {row['step']!r}, no whole number", remedy)
    return rows


def _damaged_line(path: Path, number: int, found: str, remedy: str) -> DamagedFileError:
    return DamagedFileError(f"{path}, line {number} is damaged: {found}. {remedy}")


def nearest_existing(path: Path) -> Path:
    """Returns ``path``, or the nearest folder above it that is there."""
    path = path.absolute()
    # Path.exists raises where a folder above may not be looked into.
    while not os.path.exists(path):  # noqa: PTH110
        path = path.parent
    return path


def free_space(path: Path) -> str:
    """Returns a sentence on the space that is free where ``path`` is or would be."""
    place = nearest_existing(path)
    return f"{shutil.disk_usage(place).free / 2**20:.0f} MiB are free at {place}"


def open_journal(path: Path) -> TextIO:
    """Opens a file of JSON lines to append to, without the part of a line that a kill may have left."""
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            write_bytes(path, whole)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", errors=_HALVES)


def digest_of(value: Mapping[str, object]) -> str:
    """Returns the SHA-256 of ``value`` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def link_or_copy(source: Path, destination: Path) -> None:
    """Makes ``destination`` the same file as ``source``, or a copy where links are not possible.

    Safe for files that are only ever replaced, as those of this module are.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f".{destination.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        part.write_bytes(source.read_bytes())
    part.replace(destination)


def encode_png(picture: Tensor) -> bytes:
    """Returns uint8 ``[3, H, W]`` as PNG: lossless, and the same bytes for the same picture."""
    buffer = io.BytesIO()
    as_image(picture).save(buffer, format="PNG")
    return buffer.getvalue()
