"""The one way from stored bytes to pixels, for every data set and benchmark.

The rules, in this order:

1. A picture is refused from its header, before memory is spent, if it is above ``MAX_PIXELS`` or has floating-point
   pixels, whose range no file states.
2. Of an animation, or of a file with several pictures, the first counts. A picture that ends early, or does not agree
   with its checksum, is refused: no half-grey picture trains.
3. The EXIF orientation is applied before size or colour is looked at. Metadata that cannot be read counts as absent.
4. Grey of 16 bits keeps its upper 8. Transparency of any kind (RGBA, grey with alpha, a palette with transparent
   entries, one transparent colour) is composited on white. Every other mode becomes RGB as Pillow converts it; of CMYK
   the inversion that Adobe writes is undone.
5. Colour profiles are not applied, which is how the stock pipelines load pictures.

A refusal is a ``DatasetRowError`` that names the file and carries its ``RowProblem``. Shape legend: H W pixels.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from physedit.data_loaders.picture_files import open_picture, problem_of
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, Origin

MAX_PIXELS = 64 * 2**20
"""Ours: four times a 4096x4096 picture."""

_WHITE = (255, 255, 255, 255)
_ORIENTATION = 0x0112
# EXIF 2.3, tag 0x0112: what brings the stored picture upright. 1 and unknown values leave it.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPS_SIDES = frozenset({5, 6, 7, 8})
# Chunks that may hold an orientation; encoders may write them behind the pixels.
_PNG_METADATA = frozenset({b"eXIf", b"iTXt", b"zTXt", b"tEXt"})

_T = TypeVar("_T")

Place = Callable[[int, int], Tensor]
"""From H and W to memory for a picture: uint8 ``[3, H, W]``."""


def _new(height: int, width: int) -> Tensor:
    return torch.empty((3, height, width), dtype=torch.uint8)


_place: ContextVar[Place] = ContextVar("place", default=_new)


@contextmanager
def decoded_at(place: Place) -> Iterator[None]:
    """Lets ``decode_rgb`` write pictures where ``place`` says, which saves a copy of them.

    What is decoded inside belongs to ``place`` and must not be kept beyond its use.
    """
    before = _place.set(place)
    try:
        yield
    finally:
        _place.reset(before)


def decode_rgb(data: bytes, origin: Origin) -> Tensor:
    """Decodes a stored picture to uint8 RGB ``[3, H, W]`` by the rules of this module; pure but for ``decoded_at``.

    Raises:
        DatasetRowError: no picture, a truncated one, one above ``MAX_PIXELS``, or a floating-point one.
    """
    with _opened(io.BytesIO(data), origin) as image:
        _attempt(image.load, RowProblem.DAMAGED, origin, len(data))
        upright = _attempt(lambda: _upright(image), RowProblem.DAMAGED, origin, len(data))
        rgb = _attempt(lambda: np.array(_to_rgb(upright)), RowProblem.DAMAGED, origin, len(data))
    height, width, _ = rgb.shape
    return _place.get()(height, width).copy_(torch.from_numpy(rgb).permute(2, 0, 1))


def shown_size(stream: BinaryIO, origin: Origin) -> tuple[int, int]:
    """Returns H and W in which ``decode_rgb`` would give a picture, from its header alone.

    Args:
        stream: can be sought; only the parts that hold the header are read.
        origin: names the picture in errors.

    Raises:
        DatasetRowError: no picture, one above ``MAX_PIXELS``, or a floating-point one.
    """
    with _opened(stream, origin) as image:
        if image.format == "PNG" and _has_late_metadata(stream):
            _attempt(image.load, RowProblem.DAMAGED, origin, _length(stream))
        # Pillow turns a TIFF by itself, and tells its turned size from the start.
        if image.format != "TIFF" and _orientation(image) in _SWAPS_SIDES:
            return image.width, image.height
        return image.height, image.width


def read_rgb(path: Path) -> Tensor:
    """Decodes the picture file at ``path`` as ``decode_rgb`` does.

    Raises:
        DatasetRowError: as ``decode_rgb``, or the file cannot be read.
    """
    try:
        with open_picture(path) as stream:
            data = stream.read()
    except (OSError, ValueError) as error:
        raise DatasetRowError(f"The picture file {path} cannot be read: {error}.", reason=problem_of(error)) from error
    return decode_rgb(data, Origin(str(path), 0))


def _opened(stream: BinaryIO, origin: Origin) -> Image.Image:
    """Returns the picture with its header read, or raises its refusal."""
    length = _length(stream)
    image: Image.Image = _attempt(lambda: Image.open(stream), RowProblem.UNREADABLE, origin, length)
    if image.width * image.height > MAX_PIXELS:
        raise DatasetRowError(
            f"The picture in {origin} is {image.width}x{image.height}, above the limit of {MAX_PIXELS} "
            "pixels. Scale it down or drop the row.",
            reason=RowProblem.TOO_LARGE,
        )
    if image.mode == "F":
        raise DatasetRowError(
            f"The picture in {origin} has floating-point pixels, whose range is not stated.",
            reason=RowProblem.FLOATING_POINT,
        )
    return image


def _attempt(step: Callable[[], _T], problem: RowProblem, origin: Origin, num_bytes: int) -> _T:
    try:
        return step()
    except MemoryError:
        raise
    # Pillow's readers raise whatever parsing meets: struct.error, IndexError, EOFError, zlib.error and more.
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; Pillow's own have no number
            raise DatasetRowError(
                f"The picture in {origin} cannot be read: {error}.", reason=RowProblem.NOT_READABLE
            ) from error
        is_bomb = isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning)
        # Pillow names the buffer in memory, which tells nothing.
        reason = "its format is not known" if isinstance(error, UnidentifiedImageError) else str(error).rstrip(".")
        raise DatasetRowError(
            f"The picture in {origin} ({num_bytes} bytes) cannot be decoded: {reason}. Replace it or drop the row.",
            reason=RowProblem.TOO_LARGE if is_bomb else problem,
        ) from error


def _length(stream: BinaryIO) -> int:
    length = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    return length


def _orientation(image: Image.Image) -> int:
    try:
        # Not the method of PngImageFile, which decodes the pixels first.
        tag = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # broken metadata raises anything, and counts as absent
        return 1
    return tag if isinstance(tag, int) else 1


def _upright(image: Image.Image) -> Image.Image:
    turn = _TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _has_late_metadata(stream: BinaryIO) -> bool:
    """True if a PNG has chunks behind its pixels that may hold an orientation."""
    position, is_behind_pixels, length = 8, False, _length(stream)
    while position < length:  # not every stream can be sought beyond its end, where a cut off file points
        stream.seek(position)
        head = stream.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            return False
        if is_behind_pixels and head[4:] in _PNG_METADATA:
            return True
        is_behind_pixels = is_behind_pixels or head[4:] == b"IDAT"
        position += 12 + int.from_bytes(head[:4], "big")
    return False


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        wide = np.asarray(image.convert("I"))
        return Image.fromarray((wide.clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, _WHITE), over).convert("RGB")
    return image.convert("RGB")
