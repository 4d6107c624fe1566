"""MiraData's meta CSV in its two layouts: which stretch of which video file has which captions.

Source: https://github.com/mira-space/MiraData, ``download_data.py`` of the first release (``index``, ``start_frame``,
``end_frame``, ``fps``; files ``{download}_{video}.mp4`` and ``{index}.mp4``) and of the later ones (``clip_id``,
``timestamp``; files ``{download, 12 digits}.mp4`` and ``file_path``).
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.sample import DatasetLayoutError, DatasetRowError
from physedit.data_loaders.tables import require_columns

_FIRST_LAYOUT = ("index", "video_id", "start_frame", "end_frame", "fps")
_LATER_LAYOUT = ("clip_id", "video_id", "timestamp")
_DOWNLOAD_DIGITS = 12

_Parser = Callable[[Mapping[str, str]], "ClipRow"]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a video in seconds from its start; ``end_s`` is None up to the video's end."""

    start_s: float = 0.0
    end_s: float | None = None

    def holds(self, time_s: float) -> bool:
        """True if a frame of that time stamp lies in the stretch."""
        # Half a millisecond: time stamps are rounded to the container's time base.
        return time_s >= self.start_s - 5e-4 and (self.end_s is None or time_s < self.end_s - 5e-4)


@dataclass(frozen=True, slots=True)
class ClipRow:
    """One row of the meta file: the clip's name, its caption, its stretch, and stems of files that may hold it.

    Attributes:
        clip_stems: stems of files that hold just this clip.
        video_stems: stems of files that hold the whole video.
    """

    name: str
    caption: str
    span: Span
    clip_stems: tuple[str, ...]
    video_stems: tuple[str, ...]


def read_meta_csv(file: Path, caption_column: str) -> list[ClipRow]:
    """Returns the rows of a meta file.

    Raises:
        DatasetLayoutError: the file cannot be read, has neither layout, or lacks the caption column.
        DatasetRowError: a row whose stretch cannot be read; the message names it.
    """
    try:
        with _long_cells(), file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            columns = dict.fromkeys(name for name in reader.fieldnames or () if name)
            is_first = "index" in columns
            expected = (*(_FIRST_LAYOUT if is_first else _LATER_LAYOUT), caption_column)
            require_columns(str(file), columns, expected, "Name the caption's column with --caption-column.")
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetLayoutError(f"The meta file {file} cannot be read: {error}.") from error
    parse = _first_row if is_first else _later_row
    return [_parsed(file, number, row, lambda row: parse(row, caption_column)) for number, row in enumerate(rows)]


@contextmanager
def _long_cells() -> Iterator[None]:
    # Dense captions may be longer than the reader's own limit. The limit is the whole process's, and other readers
    # find a quote that is not closed by it.
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def find_file(row: ClipRow, files: Mapping[str, Path]) -> tuple[Path, Span] | None:
    """Returns the file that holds a row's clip and the stretch in it, or None.

    Args:
        row: from ``read_meta_csv``.
        files: video files by stem.
    """
    for stem in row.clip_stems:
        if stem in files:
            return files[stem], Span()
    for stem in row.video_stems:
        if stem in files:
            return files[stem], row.span
    return None


def by_stem(files: Sequence[Path]) -> dict[str, Path]:
    """Returns files by stem; of equal stems the first."""
    stems: dict[str, Path] = {}
    for file in files:
        stems.setdefault(file.stem, file)
    return stems


def seconds(text: str) -> float:
    """Returns the seconds of ``H:MM:SS.fff``, ``MM:SS`` or a plain number.

    Raises:
        ValueError: none of these.
    """
    total = 0.0
    for part in text.strip().split(":"):
        total = total * 60 + float(part)
    return total


def _parsed(file: Path, number: int, row: Mapping[str, str], parse: _Parser) -> ClipRow:
    try:
        return parse(row)
    except (ValueError, SyntaxError, TypeError, ZeroDivisionError) as error:
        raise DatasetRowError(f"Row {number} of {file} does not say where its clip lies: {error}.") from error


def _first_row(row: Mapping[str, str], caption_column: str) -> ClipRow:
    name, video_id = row["index"], row["video_id"]
    rate = float(row["fps"])
    span = _checked(float(row["start_frame"]) / rate, float(row["end_frame"]) / rate)
    raw = name.rsplit("-", 1)[0]
    return ClipRow(name, _text(row, caption_column), span, (name,), (raw, video_id))


def _later_row(row: Mapping[str, str], caption_column: str) -> ClipRow:
    name, video_id = row["clip_id"], row["video_id"]
    start, end = ast.literal_eval(row["timestamp"])
    span = _checked(seconds(str(start)), seconds(str(end)))
    download = name.split(".")[0]
    cut = Path(row["file_path"]).stem if row.get("file_path") else name
    padded = download.zfill(_DOWNLOAD_DIGITS)
    return ClipRow(name, _text(row, caption_column), span, (cut, name), (padded, download, video_id))


def _text(row: Mapping[str, str], column: str) -> str:
    return " ".join((row[column] or "").split())


def _checked(start_s: float, end_s: float) -> Span:
    if not 0 <= start_s < end_s:
        raise ValueError(f"it ends at {end_s:g} s, but starts at {start_s:g} s")
    return Span(start_s, end_s)
