"""From one video to its pairs of frames and their picture files: the work that is done per video, in any process.

Shape legend: H W pixels as shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from PIL import Image
from torch import Tensor

from physedit.data_loaders.geometry import as_image, resized
from physedit.data_loaders.marks import Mark
from physedit.data_loaders.videos.choose import ChoiceSettings, ChosenPair, choose_pairs, first_and_last
from physedit.data_loaders.videos.cuts import Clip, Dropped, split
from physedit.data_loaders.videos.decode import Frame, VideoRefused, read_frames
from physedit.data_loaders.videos.journal import BuildError, replacing
from physedit.data_loaders.videos.looks import Look, looks_of, looks_to_last
from physedit.data_loaders.videos.meta_csv import Span
from physedit.data_loaders.videos.reasons import Reason
from physedit.data_loaders.videos.sources import SourceVideo

LOOKS_PER_S = 12.0
"""Frames a second that are examined. Ours: a flash of 1/12 s is seen, and film of 24 frames loses every other one."""

MIN_CLIP_S = 1.0
"""Shortest still clip. Ours: shorter ones hold too little motion and are mostly transitions."""

MAX_CLIP_S = 20.0
"""Longest; longer ones are divided, which bounds the memory at about 15 MB a video."""


_NOTHING_THERE = Dropped(Reason.NO_FRAMES, -1, -1)
"""A stretch that lies beyond the video's end."""


class PairKind(StrEnum):
    """Which frames make a pair."""

    MOTION = "motion"
    """Two frames of a still clip between which something has moved."""
    FIRST_LAST = "first_last"
    """The first and the last frame, as of PICA-100K's generated videos."""


class PictureFormat(StrEnum):
    """How pictures are stored; the value is the file's suffix."""

    JPEG = "jpg"
    PNG = "png"


@dataclass(frozen=True, slots=True)
class PictureSettings:
    """How frames become the set's pictures."""

    format: PictureFormat = PictureFormat.JPEG
    min_side_px: int = 256
    """Videos whose short side is below this are dropped."""
    long_side_px: int = 1536
    """Larger pictures are scaled down to it; editors work at about 1024 x 1024."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_side_px <= self.long_side_px:
            raise BuildError(
                f"min_side_px={self.min_side_px} and long_side_px={self.long_side_px}: the first must be at least 1 "
                "and at most the second."
            )


@dataclass(frozen=True, slots=True)
class ExaminedClip:
    """What came of one wanted stretch of a video: its pairs and what was dropped."""

    pairs: tuple[ChosenPair, ...]
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True)
class ExaminedVideo:
    """What came of a video: one entry for each stretch; or the reason and the message why it was refused."""

    clips: tuple[ExaminedClip, ...]
    refused: tuple[Reason, str] | None = None

    def to_json(self) -> dict[str, object]:
        """Returns the same as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> ExaminedVideo:
        """Returns what ``to_json`` was called on."""
        clips, refused = value["clips"], value["refused"]
        assert isinstance(clips, list | tuple)
        assert refused is None or isinstance(refused, list | tuple)
        return cls(
            clips=tuple(_clip_from_json(clip) for clip in clips),
            refused=None if refused is None else (Reason(refused[0]), str(refused[1])),
        )


@dataclass(frozen=True, slots=True)
class Examination:
    """One video to examine, and how."""

    video: SourceVideo
    kind: PairKind
    choice: ChoiceSettings
    min_side_px: int


def examine(job: Examination) -> ExaminedVideo:
    """Chooses the pairs of one video; decodes it once, or more often if its stretches overlap.

    Raises:
        MissingExtra: PyAV is not installed.
    """
    found: dict[int, ExaminedClip] = {}
    try:
        for numbers in _disjoint([clip.span for clip in job.video.clips]):
            tape = _Tape(_fit_frames(job))
            for number in numbers:
                frames = tape.within(job.video.clips[number].span)
                found[number] = _first_last_of(frames) if job.kind is PairKind.FIRST_LAST else _motion_of(frames, job)
            if tape.is_empty:
                raise VideoRefused(Reason.NO_FRAMES, f"{job.video.path} holds no frame.")
    except VideoRefused as refusal:
        return ExaminedVideo((), (refusal.reason, str(refusal)))
    return ExaminedVideo(tuple(found[number] for number in range(len(job.video.clips))))


@dataclass(frozen=True, slots=True)
class Extraction:
    """Frames of one video to store: number and file of each, by number."""

    path: Path
    frames: tuple[tuple[int, Path], ...]
    settings: PictureSettings


def extract(job: Extraction) -> None:
    """Writes the pictures of a video's chosen frames, each whole or not at all; those there already are kept.

    Raises:
        BuildError: the video has changed since it was examined.
    """
    wanted: dict[int, list[Path]] = {}
    for number, file in job.frames:
        if not file.exists():
            wanted.setdefault(number, []).append(file)
    try:
        frames = read_frames(job.path)
        while wanted:
            frame = next(frames)
            for file in wanted.pop(frame.number, ()):
                with replacing(file) as part:
                    part.write_bytes(encode_picture(frame.rgb(), job.settings))
    except (StopIteration, VideoRefused) as error:
        raise BuildError(f"{job.path} has changed since it was examined ({error}). Run the command again.") from error


def encode_picture(picture: Tensor, settings: PictureSettings) -> bytes:
    """Returns uint8 ``[3, H, W]`` as the set stores it, scaled down where it is above the long side."""
    height, width = picture.shape[-2:]
    scale = min(1.0, settings.long_side_px / max(height, width))
    image = as_image(resized(picture, max(1, round(height * scale)), max(1, round(width * scale))))
    return encode_image(image, settings.format)


def encode_image(image: Image.Image, picture_format: PictureFormat) -> bytes:
    """Returns ``image`` as PNG, or as JPEG of quality 95 with colour at full resolution."""
    stream = io.BytesIO()
    if picture_format is PictureFormat.PNG:
        image.save(stream, "PNG")
    else:
        image.save(stream, "JPEG", quality=95, subsampling=0)
    return stream.getvalue()


class _Tape:
    """Frames in order, from which stretches are taken one after the other."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self._next = next(frames, None)
        self.is_empty = self._next is None

    def within(self, span: Span) -> Iterator[Frame]:
        while self._next is not None:
            frame = self._next
            is_inside = span.holds(frame.time_s)
            if not is_inside and frame.time_s >= span.start_s:
                return
            self._next = next(self._frames, None)
            if is_inside:
                yield frame


def _disjoint(spans: Sequence[Span]) -> list[list[int]]:
    """Deals spans, which are in order of their start, into passes over the video in which none overlap."""
    passes: list[list[int]] = []
    for number, span in enumerate(spans):
        for numbers in passes:
            end_s = spans[numbers[-1]].end_s
            if end_s is not None and end_s <= span.start_s:
                numbers.append(number)
                break
        else:
            passes.append([number])
    return passes


def _fit_frames(job: Examination) -> Iterator[Frame]:
    for frame in read_frames(job.video.path):
        if min(frame.size) < job.min_side_px:
            height, width = frame.size
            raise VideoRefused(
                Reason.TOO_SMALL, f"{job.video.path} is {width}x{height}; the short side must be {job.min_side_px}."
            )
        yield frame


def _motion_of(frames: Iterator[Frame], job: Examination) -> ExaminedClip:
    looks = looks_of(frames, LOOKS_PER_S)
    pairs: list[ChosenPair] = []
    dropped: list[Dropped] = []
    for part in split(looks, min_length_s=MIN_CLIP_S, max_length_s=MAX_CLIP_S):
        chosen = choose_pairs(part, job.choice) if isinstance(part, Clip) else part.reason
        if isinstance(chosen, list):
            pairs.extend(chosen)
        elif isinstance(part, Clip):
            dropped.append(Dropped(chosen, part.looks[0].number, part.looks[-1].number))
        else:
            dropped.append(part)
    if not pairs and not dropped:
        dropped.append(_NOTHING_THERE)
    return ExaminedClip(tuple(pairs), tuple(dropped))


def _first_last_of(frames: Iterator[Frame]) -> ExaminedClip:
    seen: list[int] = []
    chosen = first_and_last(_noting(looks_to_last(frames, LOOKS_PER_S), seen))
    if isinstance(chosen, ChosenPair):
        return ExaminedClip((chosen,), ())
    return ExaminedClip((), (Dropped(chosen, seen[0], seen[-1]) if seen else _NOTHING_THERE,))


def _noting(looks: Iterator[Look], numbers: list[int]) -> Iterator[Look]:
    for look in looks:
        numbers.append(look.number)
        yield look


def _clip_from_json(value: Mapping[str, object]) -> ExaminedClip:
    pairs, dropped = value["pairs"], value["dropped"]
    assert isinstance(pairs, list | tuple)
    assert isinstance(dropped, list | tuple)
    return ExaminedClip(
        tuple(
            ChosenPair(
                **{**pair, "source_mark": Mark(**pair["source_mark"]), "target_mark": Mark(**pair["target_mark"])}
            )
            for pair in pairs
        ),
        tuple(Dropped(**{**entry, "reason": Reason(entry["reason"])}) for entry in dropped),
    )
