"""Votes on pairs of edits: one line of a CSV file each, which people and other programs may write too."""

import csv
import io
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

COLUMNS = ("item", "model_a", "model_b", "winner", "law")
"""Of a file that is begun here; ``law`` may be absent from others, and further columns are not read."""
_REQUIRED = COLUMNS[:4]


class ArenaError(ValueError):
    """Votes, folders or settings that cannot be used."""


class Winner(StrEnum):
    """Which of two edits was preferred."""

    A = "a"
    B = "b"
    TIE = "tie"


@dataclass(frozen=True, slots=True)
class Vote:
    """One comparison: ``item`` names what both models edited; ``law`` is None where the file does not tell."""

    item: str
    model_a: str
    model_b: str
    winner: Winner
    law: str | None = None

    @property
    def models(self) -> frozenset[str]:
        """Both models, whichever was shown where."""
        return frozenset((self.model_a, self.model_b))


def read_votes(path: Path, known: Collection[str] | None = None) -> tuple[Vote, ...]:
    """Returns the votes of a CSV file in its order.

    Args:
        path: with a header line.
        known: names of models; None takes any.

    Raises:
        ArenaError: no such file, no votes, a column is missing, or a line with an unknown model or winner, or with one
            model twice; it names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ArenaError(
            f"There is no file of votes at {path}. `physedit arena serve` writes one, with the columns "
            f"{_listed(COLUMNS)}."
        ) from error
    except UnicodeDecodeError as error:
        raise ArenaError(f"{path} is no text in UTF-8 ({error}). Save it as a CSV file in UTF-8.") from error
    lines = _lines(text, path)
    _, header = next(lines, (1, []))
    if missing := [name for name in _REQUIRED if name not in header]:
        raise ArenaError(
            f"{path}, line 1: the columns {_listed(missing)} are missing, found {_listed(header) or 'nothing'}. "
            f"Needed are {_listed(_REQUIRED)}; law may be there too."
        )
    votes = []
    for number, cells in lines:
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise ArenaError(
                f"{where}: {len(cells)} cells under {len(header)} columns. Complete the line or remove it."
            )
        votes.append(_vote(dict(zip(header, cells, strict=True)), where, known))
    if not votes:
        raise ArenaError(f"{path} holds no votes yet. Vote on some pairs first.")
    return tuple(votes)


def append_vote(path: Path, vote: Vote) -> None:
    """Adds a line to a file of votes, and its header to a new one; it is on the disk when this returns.

    The line is written at once, so that a reader, or a kill, never meets a part of it after a whole one; what a kill
    left of one is taken away. One process at a time may write.

    Raises:
        ArenaError: the file has other columns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    header = next(csv.reader([whole.decode("utf-8-sig").splitlines()[0]])) if whole.strip() else None
    if header is not None and tuple(header) != COLUMNS:
        raise ArenaError(
            f"{path} has the columns {_listed(header)}, but {_listed(COLUMNS)} are written. Give another file."
        )
    line = "" if header is not None else _line(COLUMNS)
    line += _line((vote.item, vote.model_a, vote.model_b, vote.winner.value, vote.law or ""))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        if len(whole) < len(content):
            os.ftruncate(descriptor, len(whole))
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of every line that is not empty, with the line's number."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise ArenaError(f"{path}, line {reader.line_num}: {error}. A quote may be left open.") from error


def _vote(cells: dict[str, str], where: str, known: Collection[str] | None) -> Vote:
    for column in ("model_a", "model_b"):
        name = cells[column]
        if not name or (known is not None and name not in known):
            near = get_close_matches(name, list(known or ()), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            names = f" Known are {_listed(sorted(known))}." if known else ""
            raise ArenaError(f"{where}: the {column} {name!r} is no known model.{hint}{names}")
    if cells["model_a"] == cells["model_b"]:
        raise ArenaError(f"{where}: {cells['model_a']} is compared with itself. Remove the line.")
    if cells["winner"] not in tuple(Winner):
        raise ArenaError(f"{where}: the winner is {cells['winner']!r}; expected {_listed(tuple(Winner))}.")
    return Vote(cells["item"], cells["model_a"], cells["model_b"], Winner(cells["winner"]), cells.get("law") or None)


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
