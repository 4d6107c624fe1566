"""Which videos a build reads, which stretches of them, and under which captions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.videos.journal import BuildError
from physedit.data_loaders.videos.meta_csv import Span, by_stem, find_file, read_meta_csv

VIDEO_SUFFIXES = frozenset({".mp4", ".mkv", ".mov", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".ts"})
"""What counts as a video in a folder; a file named by itself may be called anything."""


@dataclass(frozen=True, slots=True)
class WantedClip:
    """A stretch of a video; ``name`` goes into the set as the clip id, ``caption`` may be empty."""

    name: str
    caption: str
    span: Span


@dataclass(frozen=True, slots=True)
class SourceVideo:
    """A video file and the stretches wanted of it, by their start."""

    name: str
    path: Path
    clips: tuple[WantedClip, ...]

    def identity(self) -> tuple[object, ...]:
        """Returns what tells the video and its stretches from others; changes when the file does."""
        stat = self.path.stat()
        spans = [[clip.name, clip.span.start_s, clip.span.end_s] for clip in self.clips]
        return (str(self.path.resolve()), stat.st_size, stat.st_mtime_ns, spans)


@dataclass(frozen=True, slots=True)
class Sources:
    """The videos of a build by name, and the rows of the meta file for which there is no video file."""

    videos: tuple[SourceVideo, ...]
    rows_without_file: tuple[str, ...]


def find_sources(given: Sequence[Path], meta: Path | None, caption_column: str) -> Sources:
    """Returns the videos under ``given``, whole or, with a meta file, the stretches that it names.

    Without a meta file, a video's caption is the text of the ``.txt`` file beside it, if there is one.

    Raises:
        BuildError: nothing at a path, no video in a folder, or no row of the meta file has its video.
        DatasetLayoutError: the meta file cannot be read.
        DatasetRowError: one of its rows cannot.
    """
    files = _video_files(given)
    if meta is None:
        return Sources(tuple(_whole(file, name) for name, file in _named(files)), ())
    stems = by_stem(files)
    clips: dict[Path, list[WantedClip]] = {}
    missing: list[str] = []
    for row in read_meta_csv(meta, caption_column):
        found = find_file(row, stems)
        if found is None:
            missing.append(row.name)
        else:
            clips.setdefault(found[0], []).append(WantedClip(row.name, row.caption, found[1]))
    if not clips:
        raise BuildError(
            f"None of the {len(missing)} rows of {meta} has its video among the {len(files)} files given. Looked for "
            f"names such as {', '.join(missing[:3])}; found {', '.join(sorted(stems)[:3])}. See docs/from-videos.md "
            "for the names that are understood."
        )
    videos = (SourceVideo(name, file, _by_start(clips[file])) for name, file in _named(files) if file in clips)
    return Sources(tuple(videos), tuple(missing))


def _video_files(given: Sequence[Path]) -> list[Path]:
    files: dict[Path, None] = {}
    for path in given:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in VIDEO_SUFFIXES and file.is_file())
            if not found:
                raise BuildError(
                    f"The folder {path} holds no video: no file ends in {', '.join(sorted(VIDEO_SUFFIXES))}."
                )
            files.update(dict.fromkeys(found))
        elif path.is_file():
            files[path] = None
        else:
            raise BuildError(f"There is no file or folder {path}. Name video files, or folders that hold some.")
    return list(files)


def _named(files: Sequence[Path]) -> list[tuple[str, Path]]:
    """Files by a name that is unique among them: the path below the folder that holds them all."""
    absolute = [file.absolute() for file in files]
    for file in absolute:
        _refuse_unwritable(file)
    root = os.path.commonpath([file.parent for file in absolute])
    return [(file.relative_to(root).as_posix(), given) for file, given in zip(absolute, files, strict=True)]


def _refuse_unwritable(file: Path) -> None:
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        raise BuildError(f"The name of {str(file)!r} is not UTF-8, so no set can hold it. Rename it.") from error


def _whole(file: Path, name: str) -> SourceVideo:
    beside = file.with_suffix(".txt")
    try:
        caption = " ".join(beside.read_text(encoding="utf-8").split()) if beside.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"The caption {beside} cannot be read: {error}. Save it as UTF-8 or delete it.") from error
    return SourceVideo(name, file, (WantedClip(name.rsplit(".", 1)[0], caption, Span()),))


def _by_start(clips: list[WantedClip]) -> tuple[WantedClip, ...]:
    return tuple(sorted(clips, key=lambda clip: (clip.span.start_s, clip.name)))
