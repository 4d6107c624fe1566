"""Frames of a video as it is shown: rotation and pixel shape applied, time stamps kept, damage refused.

Shape legend: H W pixels as shown, h w pixels asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from physedit.data_loaders.images import MAX_PIXELS
from physedit.data_loaders.videos.reasons import Reason

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_FALLBACK_RATE = 25.0
"""Frames per second of a stream that states neither time stamps nor a rate: FFmpeg's own default for raw streams."""

_HDR_TRANSFERS = frozenset({16, 18})
"""Transfer functions PQ and HLG. Source: ITU-T H.273, table 3."""


class VideoRefused(ValueError):
    """A video cannot be used at all; ``reason`` says under which count it goes."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message


class MissingExtra(ValueError):
    """A package that the asked-for work needs is not installed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame, not yet converted. Valid on its own: it does not change when the next one is decoded.

    Attributes:
        number: place in the video in order of showing, from 0.
        time_s: time stamp, seconds from the video's start.
    """

    number: int
    time_s: float
    _decoded: VideoFrame
    _pixel_aspect: float
    _quarter_turns: int

    @property
    def size(self) -> tuple[int, int]:
        """H and W as shown."""
        height, width = self._decoded.height, _shown_width(self._decoded.width, self._pixel_aspect)
        return (width, height) if self._quarter_turns % 2 else (height, width)

    def rgb(self) -> Tensor:
        """Returns the picture, uint8 ``[3, H, W]``."""
        pixels = self._converted("rgb24", *self.size)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def grey(self, height_px: int, width_px: int) -> NDArray[np.uint8]:
        """Returns the luma, uint8 ``[h, w]``, by area averaging."""
        return self._converted("gray", height_px, width_px)

    def _converted(self, pixel_format: str, height_px: int, width_px: int) -> NDArray[np.uint8]:
        height, width = (width_px, height_px) if self._quarter_turns % 2 else (height_px, width_px)
        scaled = self._decoded.reformat(width=width, height=height, format=pixel_format, interpolation="AREA")
        pixels: NDArray[np.uint8] = np.rot90(scaled.to_ndarray(), self._quarter_turns)
        return np.ascontiguousarray(pixels)


def read_frames(path: Path) -> Iterator[Frame]:
    """Yields all frames of the first video stream in order of showing; memory holds one at a time.

    Raises:
        VideoRefused: no such file, no video in it, damaged anywhere up to the last frame asked for, above
            ``MAX_PIXELS``, interlaced, HDR, or turned by other than quarter turns.
        MissingExtra: PyAV is not installed.
    """
    av = _import_av()
    if not path.is_file():
        raise VideoRefused(Reason.UNREADABLE, f"There is no video file {path}.")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise VideoRefused(Reason.NO_VIDEO_STREAM, f"{path} holds no video stream.")
            stream = container.streams.video[0]
            _refuse_giant(path, stream)
            stream.thread_type = "AUTO"
            yield from _frames_of(path, container.decode(stream), stream)
    except av.FFmpegError as error:
        raise VideoRefused(Reason.DAMAGED, f"{path} cannot be decoded: {error.strerror}.") from error
    except OSError as error:
        raise VideoRefused(Reason.UNREADABLE, f"{path} cannot be read: {error}.") from error


def _import_av() -> ModuleType:
    try:
        import av
    except ImportError as error:
        raise MissingExtra("Reading videos needs PyAV. Install it with: pip install -e '.[video]'") from error
    return av


def _frames_of(path: Path, decoded: Iterator[VideoFrame], stream: VideoStream) -> Iterator[Frame]:
    rate = float(stream.average_rate or stream.guessed_rate or _FALLBACK_RATE)
    aspect = float(stream.sample_aspect_ratio or 1)
    first_s: float | None = None
    for number, frame in enumerate(decoded):
        if frame.is_corrupt:
            raise VideoRefused(Reason.DAMAGED, f"{path} is damaged at frame {number}.")
        _refuse_unfit(path, frame)
        time_s = number / rate if frame.time is None else float(frame.time)
        first_s = time_s if first_s is None else first_s
        yield Frame(number, time_s - first_s, frame, aspect, _quarter_turns(path, frame))


def _refuse_giant(path: Path, stream: VideoStream) -> None:
    height, width = stream.codec_context.height, stream.codec_context.width
    if height * width > MAX_PIXELS:
        raise VideoRefused(
            Reason.TOO_LARGE, f"{path} is {width}x{height}, above the limit of {MAX_PIXELS} pixels a frame."
        )


def _refuse_unfit(path: Path, frame: VideoFrame) -> None:
    if frame.interlaced_frame:
        raise VideoRefused(Reason.INTERLACED, f"{path} is interlaced: each frame mixes two moments.")
    if int(frame.color_trc) in _HDR_TRANSFERS:
        raise VideoRefused(Reason.HDR, f"{path} is HDR (PQ or HLG), which needs tone mapping first.")


def _quarter_turns(path: Path, frame: VideoFrame) -> int:
    """How many quarter turns, counter-clockwise, bring the stored frame to the one shown."""
    if frame.rotation % 90:
        raise VideoRefused(
            Reason.UNREADABLE, f"{path} is to be shown turned by {frame.rotation} degrees, which is no quarter turn."
        )
    return frame.rotation // 90 % 4


def _shown_width(stored_width: int, pixel_aspect: float) -> int:
    return max(1, round(stored_width * pixel_aspect))
