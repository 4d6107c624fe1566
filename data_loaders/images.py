"""The one way from stored bytes to pixels: orientation, ground colour and mode are decided here.

Shape legend: H W pixels.
"""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from physedit.data_loaders.sample import DatasetRowError, Origin

# Ours: four times a 4096x4096 picture. Refused from the header, before memory is spent.
MAX_PIXELS = 64 * 2**20
_WHITE = (255, 255, 255, 255)


def decode_rgb(data: bytes, origin: Origin) -> Tensor:
    """Decodes a stored picture to uint8 RGB ``[3, H, W]``.

    The EXIF orientation is applied first, transparency is composited on white, every mode becomes RGB (16-bit
    grey keeps its upper 8 bits), and of an animation the first frame counts.

    Raises:
        DatasetRowError: no picture, a truncated one, one above ``MAX_PIXELS``, or a floating-point one.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            _refuse_giant(image, origin)
            upright = ImageOps.exif_transpose(image)
            rgb = np.array(_to_rgb(upright, origin))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DatasetRowError):
            raise
        # Pillow names the buffer in memory, which tells nothing.
        reason = "its format is not known" if isinstance(error, UnidentifiedImageError) else str(error)
        raise DatasetRowError(
            f"The picture in {origin} ({len(data)} bytes) cannot be decoded: {reason}. Replace it or drop the row."
        ) from error
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def read_rgb(path: Path) -> Tensor:
    """Decodes the picture file at ``path`` as ``decode_rgb`` does.

    Raises:
        DatasetRowError: as ``decode_rgb``, or the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetRowError(f"The picture file {path} cannot be read: {error}.") from error
    return decode_rgb(data, Origin(str(path), 0))


def _refuse_giant(image: Image.Image, origin: Origin) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise DatasetRowError(
            f"The picture in {origin} is {image.width}x{image.height}, above the limit of {MAX_PIXELS} "
            "pixels. Scale it down or drop the row."
        )


def _to_rgb(image: Image.Image, origin: Origin) -> Image.Image:
    if image.mode == "F":
        raise DatasetRowError(f"The picture in {origin} has floating-point pixels, whose range is not stated.")
    if image.mode.startswith("I"):
        wide = np.asarray(image.convert("I"))
        return Image.fromarray((wide.clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, _WHITE), over).convert("RGB")
    return image.convert("RGB")
