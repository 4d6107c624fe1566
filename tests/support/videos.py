"""Short videos whose content is known: a ball before a rough wall, a moving camera, a cut, flicker, blur."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

RATE = 12
HEIGHT, WIDTH = 240, 320
BALL_PX = 44
Picture = NDArray[np.uint8]


def wall(seed: int, width: int = WIDTH) -> Picture:
    """A rough grey wall: random stains of two sizes."""
    draw = np.random.default_rng(seed)
    grey = np.full((HEIGHT, width), 120.0)
    for size, levels in ((40, 60.0), (5, 30.0)):
        stains = Image.fromarray(draw.uniform(-1, 1, (HEIGHT // size + 2, width // size + 2)).astype(np.float32))
        grown = stains.resize((stains.width * size, stains.height * size), Image.Resampling.BICUBIC)
        grey += levels * np.array(grown)[size : size + HEIGHT, size : size + width]
    return np.stack([grey, grey, grey], axis=2).clip(0, 255).astype(np.uint8)


def with_ball(background: Picture, x: float, y: float = 120.0) -> Picture:
    """The background with a red ball whose centre is at (x, y)."""
    rows, columns = np.mgrid[: background.shape[0], : background.shape[1]]
    picture = background.copy()
    picture[(rows - y) ** 2 + (columns - x) ** 2 <= (BALL_PX / 2) ** 2] = (230, 30, 30)
    return picture


def rolling_ball(seed: int = 0, num_frames: int = 16, start: float = 40.0, step: float = 15.0) -> list[Picture]:
    """A ball that rolls over a still wall."""
    background = wall(seed)
    return [with_ball(background, start + step * i) for i in range(num_frames)]


def panning(seed: int = 1, num_frames: int = 24, step: int = 4) -> list[Picture]:
    """A wall past which the camera moves."""
    wide = wall(seed, WIDTH + step * num_frames)
    return [wide[:, step * i : step * i + WIDTH] for i in range(num_frames)]


def flickering(frames: Sequence[Picture], levels: int = 25) -> list[Picture]:
    """Every other frame brighter."""
    return [(f.astype(int) + levels * (i % 2)).clip(0, 255).astype(np.uint8) for i, f in enumerate(frames)]


def blurred(picture: Picture) -> Picture:
    """The picture out of focus."""
    return np.array(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(4)))


def write_video(
    path: Path,
    frames: Iterable[Picture],
    *,
    codec: str = "ffv1",
    rate: int = RATE,
    times: Sequence[int] | None = None,
    quarter_turns: int = 0,
) -> Path:
    """Writes ``frames``; lossless but for the colour's resolution with ffv1.

    Args:
        path: its suffix chooses the container.
        frames: uint8 ``[H, W, 3]``, all of one size.
        codec: FFmpeg's name.
        rate: frames a second.
        times: time stamps in milliseconds, or None for even ones.
        quarter_turns: written as metadata: how many quarter turns, counter-clockwise, show it upright.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.pix_fmt = "yuv420p"
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if quarter_turns:
            stream.set_display_rotation(90 * quarter_turns)
        for index, pixels in enumerate(frames):
            if index == 0:
                stream.height, stream.width = pixels.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[index], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
