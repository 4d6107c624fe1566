"""What pictures are recognised by: one another exactly, or nearly, after scaling and compression. Pure.

Shape legend: H W pixels, h w pixels of a small grey picture.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from physedit.data_loaders.geometry import as_image

NEAR_BITS = 4
"""Hashes of 64 bits that differ in at most so many are of near-duplicates.

Source: the distance at which others found copies of benchmark pictures in PICA-100K (dHash, at most 4).
"""

THUMBNAIL_LEVELS = 12.0
"""Pictures with like hashes whose thumbnails differ by more on average, of 255, are different all the same."""

_HASH_ROWS, _HASH_COLUMNS = 8, 9
_HASH_STEP = 2
"""A neighbour must be brighter by more than this many levels, of 255, to set a bit: flat areas would hash noise."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a picture is recognised by: a difference hash of 64 bits, and 8 x 9 grey levels in hexadecimal digits."""

    hash: int
    thumbnail: str


@dataclass(frozen=True, slots=True)
class Match:
    """A known picture that another one repeats: its number, and the bits in which the hashes differ.

    ``is_exact`` is True if every pixel is the same.
    """

    number: int
    num_bits: int
    is_exact: bool


def mark_of(grey: NDArray[np.uint8]) -> Mark:
    """Returns what a grey picture ``[h, w]`` is recognised by.

    Source: the difference hash of N. Krawetz, "Kind of Like That", 2013, with a dead zone of 2 levels.
    """
    rows = np.array_split(grey.astype(np.float32), _HASH_ROWS, axis=0)
    cells = [[part.mean() for part in np.array_split(row, _HASH_COLUMNS, axis=1)] for row in rows]
    means = np.array(cells).round().astype(np.int64)  # [8, 9]
    bits = (means[:, 1:] - means[:, :-1] > _HASH_STEP).ravel()
    return Mark(int("".join("1" if bit else "0" for bit in bits), 2), means.astype(np.uint8).tobytes().hex())


def picture_mark(picture: Tensor) -> Mark:
    """Returns what uint8 RGB ``[3, H, W]`` is recognised by, whatever its size."""
    size = (8 * _HASH_COLUMNS, 8 * _HASH_ROWS)
    grey = as_image(picture).convert("L").resize(size, Image.Resampling.BOX)
    return mark_of(np.asarray(grey))


def pixel_digest(picture: Tensor) -> bytes:
    """Returns 16 bytes that tell uint8 ``[3, H, W]`` from every other picture."""
    pixels = picture.contiguous().numpy()
    return hashlib.blake2b(
        pixels.data, digest_size=16, person=f"{pixels.shape[1]}x{pixels.shape[2]}"[:16].encode()
    ).digest()


def levels_apart(one: Mark, other: Mark) -> float:
    """Returns by how many grey levels, of 255, two thumbnails differ on average."""
    a, b = (_levels(mark) for mark in (one, other))
    return float(np.abs(a - b).mean())


class KnownPictures:
    """Pictures to be recognised among others, such as a benchmark's. Picklable; 100 bytes a picture."""

    def __init__(self, pictures: Iterable[Tensor], *, near_bits: int = NEAR_BITS) -> None:
        """Marks the pictures, uint8 RGB ``[3, H, W]``, one after the other, and keeps none of them."""
        digests: dict[bytes, int] = {}
        marks: list[Mark] = []
        for number, picture in enumerate(pictures):
            digests.setdefault(pixel_digest(picture), number)
            marks.append(picture_mark(picture))
        self._digests, self._marks = digests, marks
        self._hashes = np.array([mark.hash for mark in marks], np.uint64)
        self._near_bits = near_bits

    def __len__(self) -> int:
        return len(self._marks)

    def match(self, picture: Tensor, digest: bytes) -> Match | None:
        """Returns the known picture that ``picture`` repeats, the most alike of several; None if it repeats none.

        Args:
            picture: uint8 RGB ``[3, H, W]``.
            digest: its ``pixel_digest``.
        """
        if digest in self._digests:
            return Match(self._digests[digest], 0, is_exact=True)
        mark = picture_mark(picture)
        distances = np.bitwise_count(self._hashes ^ np.uint64(mark.hash))
        for number in np.argsort(distances, kind="stable").tolist():
            if distances[number] > self._near_bits:
                return None
            if levels_apart(self._marks[number], mark) <= THUMBNAIL_LEVELS:
                return Match(number, int(distances[number]), is_exact=False)
        return None


def _levels(mark: Mark) -> NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex(mark.thumbnail), np.uint8).astype(np.float32)
