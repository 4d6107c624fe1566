"""Pictures as a page holds them: small, as data URIs, and enlarged without smoothing where single pixels matter."""

import base64
import io
from functools import lru_cache
from pathlib import Path

from PIL import Image
from torch import Tensor

from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.images import read_rgb

_PIXEL_ART_BELOW_PX = 96
_LARGEST_PICTURE_PX = 320
_THUMBNAIL_PX = 176
_THUMBNAIL_QUALITY = 82
_NUM_REMEMBERED = 512


def data_uri(picture: Tensor) -> str:
    """Returns uint8 ``[3, H, W]`` as a PNG of at most 320 pixels."""
    image = as_image(picture)
    image.thumbnail((_LARGEST_PICTURE_PX, _LARGEST_PICTURE_PX), Image.Resampling.LANCZOS)
    return _uri(image, "PNG")


def display_side(picture: Tensor) -> tuple[int, bool]:
    """Returns the display width in CSS pixels, and whether single pixels are to be seen."""
    side = int(picture.shape[-1])
    longest = max(picture.shape[-2:])
    if longest <= _PIXEL_ART_BELOW_PX:
        return 4 * side, True
    return min(side, _LARGEST_PICTURE_PX), False


def thumbnail(path: Path) -> tuple[str | None, bool]:
    """Returns a picture file at 176 pixels, and whether single pixels are to be seen; None if it cannot be read.

    Small pictures stay PNG, others become JPEG. The newest are remembered: inputs and base recur at every step.
    """
    if not path.is_file():
        return None, False
    status = path.stat()
    return _thumbnail(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _thumbnail(path: Path, _changed_ns: int, _num_bytes: int) -> tuple[str | None, bool]:
    try:
        image = as_image(read_rgb(path))
    except ValueError:
        return None, False
    if max(image.size) <= _PIXEL_ART_BELOW_PX:
        return _uri(image, "PNG"), True
    image.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return _uri(image, "JPEG"), False


def _uri(image: Image.Image, form: str) -> str:
    buffer = io.BytesIO()
    if form == "PNG":
        image.save(buffer, format=form, optimize=True)
    else:
        image.save(buffer, format=form, quality=_THUMBNAIL_QUALITY)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
