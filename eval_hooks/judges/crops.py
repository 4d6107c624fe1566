"""The picture a judge is shown for a question: the region, enlarged, as encoded bytes.

Source of the published rules: github.com/Andrew0613/PICABench at 0514acd, PicaEval_gpt.py and PicaEval_qwen.py.
"""

from __future__ import annotations

import io

from PIL import Image

from physedit.data_loaders.sample import Box

LONG_SIDE_PX = 1024
PADDING_PX = 20
_QUALITY = 90
_WHITE_SIDE_PX = 512

OFFICIAL_RULES = (
    f"long side {LONG_SIDE_PX} truncated lanczos; crop {PADDING_PX} clipped; again; JPEG {_QUALITY}; "
    f"else whole; else white {_WHITE_SIDE_PX}"
)
"""What decides the shown bytes, in words, for the protocol's identity."""
STRICT_RULES = f"long side {LONG_SIDE_PX} rounded lanczos; crop {PADDING_PX} clipped; again; JPEG {_QUALITY} 4:4:4"
"""Likewise for the strict protocol."""


def shown_by_gpt(picture: Image.Image | None, box: Box | None) -> bytes:
    """Returns what PicaEval_gpt.py sends: the region after two generations of JPEG, the whole picture after one."""
    stored = _stored_region(picture, box)
    return _jpeg(_whole(picture) if stored is None else _official_resize(_opened(stored)))


def shown_by_qwen(picture: Image.Image | None, box: Box | None) -> bytes:
    """Returns what PicaEval_qwen.py hands to the model: its own JPEG of the region, any other pixels as PNG."""
    stored = _stored_region(picture, box)
    if stored is None:
        return _png(_whole(picture))
    opened = _opened(stored)
    resized = _official_resize(opened)
    return stored if resized is opened else _png(resized)


def falls_back(width: int, height: int, box: Box | None) -> bool:
    """Tells whether the published scripts show the whole picture of this size although a region is asked about.

    Args:
        width: of the output picture as stored.
        height: likewise.
        box: the question's box; None if the file has none that can be used.
    """
    if box is None:
        return True
    try:
        _official_size(*_clipped(*_official_size(width, height), box))
    except (ValueError, ArithmeticError):
        return True
    return False


def _stored_region(picture: Image.Image | None, box: Box | None) -> bytes | None:
    """Returns the JPEG that the scripts store of a region; None where they take the whole picture instead."""
    if picture is None or box is None:
        return None
    try:
        return _jpeg(_official_resize(_official_crop(_official_resize(picture), box)))
    # The scripts catch everything here; what a crop, a resize and a save raise on odd boxes is one of these.
    except (ValueError, ArithmeticError, OSError, SystemError, MemoryError):
        return None


def _opened(stored: bytes) -> Image.Image:
    """Returns a JPEG of ours, decoded once its pixels are needed; the scripts convert it to RGB, which it is."""
    return Image.open(io.BytesIO(stored))


def _whole(picture: Image.Image | None) -> Image.Image:
    if picture is None:
        return _white()
    try:
        return _official_resize(picture)
    except ValueError:  # a side of the picture became 0: the loaders then take the white one
        return _white()


def _white() -> Image.Image:
    return Image.new("RGB", (_WHITE_SIDE_PX, _WHITE_SIDE_PX), "white")


def _official_resize(picture: Image.Image) -> Image.Image:
    """Brings the long side to 1024 or, by truncation, to 1023; a picture whose long side is 1024 stays as it is."""
    size = _official_size(*picture.size)
    return picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)


def _official_size(width: int, height: int) -> tuple[int, int]:
    if max(width, height) == LONG_SIDE_PX:
        return width, height
    scale = float(LONG_SIDE_PX) / max(width, height)
    size = int(width * scale), int(height * scale)
    if min(size) < 1:
        raise ValueError(f"a picture of {width}x{height} has no size with a long side of {LONG_SIDE_PX}")
    return size


def _official_crop(picture: Image.Image, box: Box) -> Image.Image:
    left, top = max(0, box.x - PADDING_PX), max(0, box.y - PADDING_PX)
    right = min(picture.width, box.x + box.width + PADDING_PX)
    bottom = min(picture.height, box.y + box.height + PADDING_PX)
    # Pillow rounds these, half to even; its annotation asks for whole numbers or floats alike.
    return picture.crop((left, top, right, bottom))


def _clipped(width: int, height: int, box: Box) -> tuple[int, int]:
    left, top = max(0, box.x - PADDING_PX), max(0, box.y - PADDING_PX)
    right, bottom = min(width, box.x + box.width + PADDING_PX), min(height, box.y + box.height + PADDING_PX)
    if right < left or bottom < top:
        raise ValueError("the box ends before it begins")
    return round(right) - round(left), round(bottom) - round(top)


def shown_strictly(picture: Image.Image, box: Box | None) -> bytes | None:
    """Returns the region as one JPEG, None where the box does not meet the picture.

    The frame, the margin and the enlargement are the published ones; sizes are rounded instead of truncated, so that a
    long side is always 1024, and a box is never quietly exchanged for the whole picture.
    """
    framed = _strict_resize(picture)
    if box is None:
        return _jpeg(framed, subsampling=0)
    if not _meets(framed, box):
        return None
    return _jpeg(_strict_resize(_official_crop(framed, box)), subsampling=0)


def _meets(framed: Image.Image, box: Box) -> bool:
    is_inside = box.x < framed.width and box.y < framed.height and box.x + box.width > 0 and box.y + box.height > 0
    return is_inside and box.width > 0 and box.height > 0


def _strict_resize(picture: Image.Image) -> Image.Image:
    scale = LONG_SIDE_PX / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)


def _jpeg(picture: Image.Image, subsampling: int = -1) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_QUALITY, subsampling=subsampling)
    return buffer.getvalue()


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()
