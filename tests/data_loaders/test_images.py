import io

import numpy as np
import pytest
from PIL import Image

from physedit.data_loaders import images
from physedit.data_loaders.images import decode_rgb, read_rgb
from physedit.data_loaders.sample import DatasetRowError, Origin

ORIGIN = Origin("shard.parquet", 7)
WHITE, RED, GREEN, BLUE = (255, 255, 255), (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encoded(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def corners() -> Image.Image:
    """32 wide, 48 high: red, green above blue, white."""
    pixels = np.zeros((48, 32, 3), dtype=np.uint8)
    pixels[:24, :16], pixels[:24, 16:], pixels[24:, :16], pixels[24:, 16:] = RED, GREEN, BLUE, WHITE
    return Image.fromarray(pixels)


# How a camera must store the upright picture so that the tag brings it back (EXIF 2.3, tag 0x0112).
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("tag", STORED)
def test_orientation_tag_is_applied_before_anything_else(tag: int) -> None:
    stored = corners() if STORED[tag] is None else corners().transpose(STORED[tag])
    exif = Image.Exif()
    exif[0x0112] = tag
    decoded = decode_rgb(encoded(stored, "JPEG", exif=exif, quality=95), ORIGIN)
    assert decoded.shape == (3, 48, 32)
    for (row, column), colour in {(8, 6): RED, (8, 26): GREEN, (40, 6): BLUE, (40, 26): WHITE}.items():
        # JPEG at quality 95 keeps a flat colour to a few levels.
        assert np.abs(decoded[:, row, column].int().numpy() - np.array(colour)).max() <= 4, (row, column)


def test_hidden_colour_under_transparency_becomes_white() -> None:
    pixels = np.full((8, 8, 4), (255, 0, 0, 0), dtype=np.uint8)
    pixels[:, 4:] = (0, 0, 255, 255)
    decoded = decode_rgb(encoded(Image.fromarray(pixels)), ORIGIN)
    assert decoded[:, 0, 0].tolist() == [255, 255, 255]
    assert decoded[:, 0, 7].tolist() == [0, 0, 255]


def test_half_transparent_grey_is_composited_on_white() -> None:
    pixels = np.full((8, 8, 2), (100, 128), dtype=np.uint8)
    decoded = decode_rgb(encoded(Image.fromarray(pixels, "LA")), ORIGIN)
    # 100 * 128/255 + 255 * 127/255, to rounding.
    assert abs(int(decoded[0, 0, 0]) - 177) <= 1


def test_transparent_palette_entry_becomes_white() -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.paste(1, (4, 0, 8, 8))
    decoded = decode_rgb(encoded(image, transparency=0), ORIGIN)
    assert decoded[:, 0, 0].tolist() == [255, 255, 255]
    assert decoded[:, 0, 7].tolist() == [0, 255, 0]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_becomes_rgb_of_the_same_colour(mode: str) -> None:
    decoded = decode_rgb(encoded(Image.new("RGB", (8, 8), WHITE).convert(mode)), ORIGIN)
    assert decoded.shape == (3, 8, 8)
    assert decoded.min() == 255


def test_grey_keeps_its_level() -> None:
    assert decode_rgb(encoded(Image.new("L", (8, 8), 128)), ORIGIN).unique().tolist() == [128]


def test_sixteen_bit_grey_keeps_its_upper_byte() -> None:
    wide = Image.fromarray(np.full((8, 8), 0x80FF, dtype=np.uint16))
    assert decode_rgb(encoded(wide), ORIGIN).unique().tolist() == [0x80]


def test_cmyk_red_is_red() -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    decoded = decode_rgb(encoded(red, "JPEG", quality=95), ORIGIN)
    assert np.abs(decoded[:, 8, 8].int().numpy() - np.array(RED)).max() <= 10


def test_truncated_picture_names_file_row_and_size() -> None:
    data = encoded(corners(), "JPEG")[:200]
    with pytest.raises(DatasetRowError, match=r"shard\.parquet, row 7 \(200 bytes\)"):
        decode_rgb(data, ORIGIN)


def test_random_bytes_are_refused() -> None:
    with pytest.raises(DatasetRowError, match=r"shard\.parquet, row 7"):
        decode_rgb(bytes(range(20)), ORIGIN)


def test_giant_picture_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 10_000)
    with pytest.raises(DatasetRowError, match=r"row 7 is 300x200, above the limit of 10000"):
        decode_rgb(encoded(Image.new("RGB", (300, 200))), ORIGIN)


def test_pillows_own_limit_names_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(DatasetRowError, match=r"row 7.*90000 pixels"):
        decode_rgb(encoded(Image.new("RGB", (300, 300))), ORIGIN)


def test_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(DatasetRowError, match=r"absent\.png"):
        read_rgb(tmp_path / "absent.png")


def test_bytes_that_are_no_picture_are_named_by_file_and_row() -> None:
    with pytest.raises(DatasetRowError, match=r"set\.parquet.*3.*its format is not known") as caught:
        decode_rgb(b"junk", Origin("set.parquet", 3))
    assert "BytesIO" not in str(caught.value)
