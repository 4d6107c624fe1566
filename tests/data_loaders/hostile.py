"""A set of pairs in which nearly every row is odd or broken, and what is to become of each row."""

import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from physedit.data_loaders.problems import RowProblem

HOSTILE_COLUMNS = {"source": "source", "target": "target", "instruction": "instruction", "level": "explicit"}
"""The arguments of ``Pairs`` that read the set, beside ``path``."""

RED, BLUE = (255, 0, 0), (0, 0, 255)
HEIGHT, WIDTH = 24, 32


@dataclass(frozen=True)
class Expected:
    """What becomes of a row.

    ``reason`` is None for a row that can be used; ``in_header`` is True if the reason is known without decoding;
    ``source_size`` is the height and width in which a usable row's source arrives.
    """

    reason: str | None
    in_header: bool = True
    source_size: tuple[int, int] = (HEIGHT, WIDTH)

    @property
    def is_usable(self) -> bool:
        return self.reason is None


def write_hostile(folder: Path) -> dict[str, Expected]:
    """Writes ``metadata.jsonl`` and its pictures; returns each row's name and fate, in the order of the rows.

    The instruction of a usable row is ``instruction_of(name)``; its source is red in the upper left corner, its target
    blue (where colours are lossless).
    """
    pictures = folder / "pictures"
    pictures.mkdir(parents=True)
    (pictures / "target.png").write_bytes(encoded(plain(BLUE)))
    (pictures / "folder.png").mkdir()
    for file, data in SOURCES.values():
        (pictures / file).write_bytes(data())
    lines = [_line(name, file) for name, (file, _) in SOURCES.items()] + list(LINES.values())
    (folder / "metadata.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n")
    fates = {**{name: EXPECTED_OF_SOURCES.get(name, Expected(None)) for name in SOURCES}, **EXPECTED_OF_LINES}
    assert list(fates) == [*SOURCES, *LINES]
    return fates


def instruction_of(name: str) -> str:
    return INSTRUCTIONS.get(name, f"explicit {name}")


def encoded(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def plain(colour: object = RED, mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    return Image.new(mode, size, colour)


def noisy(size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """Red in the upper left corner, noise elsewhere, so that its file is long enough to be cut."""
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    pixels[:4, :4] = RED
    return Image.fromarray(pixels)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, *, depth: int = 8, pixels: bytes = b"", extra: bytes = b"") -> bytes:
    """PNG bytes, RGB, made by hand: what no encoder would write."""
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def red_rows(sample: bytes = b"\xff\x00\x00") -> bytes:
    return (b"\x00" + sample * WIDTH) * HEIGHT


def with_orientation(tag: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = tag
    return encoded(plain(), "JPEG", exif=exif, quality=95)


def with_segment(marker: int, data: bytes) -> bytes:
    """A JPEG with one more application segment right behind its start."""
    jpeg = encoded(plain(), "JPEG", quality=95)
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data + jpeg[2:]


def animated(file_format: str, **options: object) -> bytes:
    return encoded(plain(), file_format, save_all=True, append_images=[plain(BLUE)], duration=100, **options)


def palette(**options: object) -> bytes:
    image = Image.new("P", (WIDTH, HEIGHT), 1)
    image.putpalette([0, 255, 0, 255, 0, 0])
    image.paste(0, (WIDTH // 2, 0, WIDTH, HEIGHT))
    return encoded(image, **options)


def flipped_byte() -> bytes:
    """A PNG whose pixels do not agree with their checksum."""
    data = bytearray(encoded(noisy()))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


SOURCES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    # Odd, and to be read.
    "plain": ("plain.png", lambda: encoded(plain())),
    "turned_3": ("turned_3.jpg", lambda: with_orientation(3)),
    "turned_6": ("turned_6.jpg", lambda: with_orientation(6)),
    "turned_8": ("turned_8.jpg", lambda: with_orientation(8)),
    "turned_99": ("turned_99.jpg", lambda: with_orientation(99)),
    "exif_garbage": ("exif_garbage.jpg", lambda: with_segment(0xE1, b"Exif\x00\x00II*\x00" + b"\xff" * 40)),
    "exif_cut": ("exif_cut.jpg", lambda: with_segment(0xE1, b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x05\x01")),
    "xmp_garbage": ("xmp_garbage.jpg", lambda: with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\x00<x" + b"\xfe" * 9)),
    "profile_garbage_jpeg": ("profile.jpg", lambda: with_segment(0xE2, b"ICC_PROFILE\x00\x07\x01" + b"\x00" * 20)),
    "profile_garbage_png": (
        "profile.png",
        lambda: png_of(WIDTH, HEIGHT, pixels=red_rows(), extra=chunk(b"iCCP", b"x\x00\x00junk")),
    ),
    "alpha": ("alpha.png", lambda: encoded(plain((255, 0, 0, 255), "RGBA"))),
    "alpha_hidden": ("alpha_hidden.png", lambda: encoded(plain((255, 0, 0, 0), "RGBA"))),
    "grey_alpha": ("grey_alpha.png", lambda: encoded(plain((100, 128), "LA"))),
    "palette": ("palette.png", palette),
    "palette_transparent": ("palette_transparent.png", lambda: palette(transparency=0)),
    "one_bit": ("one_bit.png", lambda: encoded(plain(1, "1"))),
    "grey": ("grey.png", lambda: encoded(plain(128, "L"))),
    "grey_transparent": ("grey_transparent.png", lambda: encoded(plain(128, "L"), transparency=128)),
    "grey_16_bit": ("grey_16.png", lambda: encoded(Image.fromarray(np.full((HEIGHT, WIDTH), 0x80FF, np.uint16)))),
    "colour_16_bit": (
        "colour_16.png",
        lambda: png_of(WIDTH, HEIGHT, depth=16, pixels=red_rows(b"\xff\xff\x00\x00\x00\x00")),
    ),
    "cmyk_jpeg": ("cmyk.jpg", lambda: encoded(plain((0, 255, 255, 0), "CMYK"), "JPEG", quality=95)),
    "cmyk_tiff": ("cmyk.tif", lambda: encoded(plain((0, 255, 255, 0), "CMYK"), "TIFF")),
    "progressive": ("progressive.jpg", lambda: encoded(plain(), "JPEG", progressive=True)),
    "animated_gif": ("animated.gif", lambda: animated("GIF")),
    "animated_png": ("animated.png", lambda: animated("PNG")),
    "animated_webp": ("animated.webp", lambda: animated("WEBP", lossless=True)),
    "bitmap": ("bitmap.bmp", lambda: encoded(plain(), "BMP")),
    "tiff": ("tiff.tif", lambda: encoded(plain(), "TIFF", compression="tiff_lzw")),
    "wrong_ending": ("wrong_ending.jpg", lambda: encoded(plain())),
    "no_ending": ("no_ending", lambda: encoded(plain())),
    "tail_of_junk": ("tail.jpg", lambda: encoded(plain(), "JPEG", quality=95) + b"junk" * 50),
    "one_pixel": ("one_pixel.png", lambda: encoded(plain(size=(1, 1)))),
    "strip": ("strip.png", lambda: encoded(plain(size=(600, 3)))),
    "name_of_snow": ("雪 and spaces ü.png", lambda: encoded(plain())),
    # Broken.
    "empty": ("empty.png", lambda: b""),
    "random": ("random.png", lambda: bytes(range(20))),
    "web_page": ("web_page.jpg", lambda: b"<!DOCTYPE html><html><body>404 Not Found</body></html>"),
    "large_file_pointer": (
        "pointer.png",
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    ),
    "vector": ("vector.svg", lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'),
    "cut_in_header": ("cut_in_header.png", lambda: encoded(plain())[:20]),
    "cut_behind_header": ("cut_behind_header.png", lambda: encoded(plain())[:33]),
    "cut_png": ("cut.png", lambda: encoded(noisy())[:1500]),
    "cut_jpeg": ("cut.jpg", lambda: encoded(noisy((96, 96)), "JPEG")[:3000]),
    "cut_webp": ("cut.webp", lambda: encoded(noisy(), "WEBP", lossless=True)[:1000]),
    "flipped_byte": ("flipped_byte.png", flipped_byte),
    "giant": ("giant.png", lambda: png_of(20_000, 10_000)),
    "giant_beyond_pillow": ("giant_beyond.png", lambda: png_of(60_000, 60_000)),
    "text_bomb": (
        "text_bomb.png",
        lambda: png_of(
            WIDTH, HEIGHT, pixels=red_rows(), extra=chunk(b"zTXt", b"c\x00\x00" + zlib.compress(bytes(2 << 20)))
        ),
    ),
    "floating_point": ("floating.tif", lambda: encoded(plain(0.5, "F"), "TIFF")),
}
"""Rows that differ in their source: name, file and content."""


def _row(name: str, **cells: object) -> dict[str, object]:
    row: dict[str, object] = {"name": name, "source": "pictures/plain.png", "target": "pictures/target.png"}
    return row | {"instruction": instruction_of(name)} | cells


def _line(name: str, file: str) -> bytes:
    return json.dumps(_row(name, source=f"pictures/{file}"), ensure_ascii=False).encode()


def _json(name: str, **cells: object) -> bytes:
    return json.dumps(_row(name, **cells), ensure_ascii=False).encode()


def _without(name: str, column: str) -> bytes:
    return json.dumps({key: cell for key, cell in _row(name).items() if key != column}).encode()


INSTRUCTIONS = {
    "snow_and_smile": "把雪 add 🙂 café it’s",  # noqa: RUF001 - a curly apostrophe is meant
    "windows_line": "ends like Windows",
    "marked": "begins with a byte order mark",
    "long": "word " * 4999 + "word",
    "padded": "has spaces around",
}

LINES: Mapping[str, bytes] = {
    "snow_and_smile": _json("snow_and_smile"),
    "windows_line": _json("windows_line") + b"\r",
    "marked": _json("marked", instruction="\ufeffbegins with a byte order mark"),
    "long": _json("long"),
    "padded": _json("padded", instruction="  has spaces around\n"),
    "target_of_other_size": _json("target_of_other_size", target="pictures/strip.png"),
    "absent_source": _json("absent_source", source="pictures/absent.png"),
    "nearly_named": _json("nearly_named", source="pictures/plain_.png"),
    "folder": _json("folder", target="pictures/folder.png"),
    "null_sign_in_name": _json("null_sign_in_name", source="pictures/plain\0.png"),
    "null_source": _json("null_source", source=None),
    "empty_source": _json("empty_source", source=""),
    "null_target": _json("null_target", target=None),
    "number_target": _json("number_target", target=5),
    "lacks_target": _without("lacks_target", "target"),
    "broken_target": _json("broken_target", target="pictures/random.png"),
    "blank": _json("blank", instruction=" \t\n"),
    "invisible": _json("invisible", instruction="\u200b\ufeff"),
    "null_prompt": _json("null_prompt", instruction=None),
    "lacks_prompt": _without("lacks_prompt", "instruction"),
    "number_prompt": _json("number_prompt", instruction=7),
    "list_prompt": _json("list_prompt", instruction=["make", "it", "wet"]),
    "windows_apostrophe": _json("windows_apostrophe", instruction="it@s").replace(b"@", b"\x92"),
    "no_json": b'{"name": "no_json", "source": ',
    "array": b'["array"]',
}
"""Rows that differ in their line of the table."""

CUT_IN_HEADER = ("cut_in_header", "cut_behind_header", "cut_webp")

EXPECTED_OF_SOURCES = {
    "turned_6": Expected(None, source_size=(WIDTH, HEIGHT)),
    "turned_8": Expected(None, source_size=(WIDTH, HEIGHT)),
    "one_pixel": Expected(None, source_size=(1, 1)),
    "strip": Expected(None, source_size=(3, 600)),
    "giant": Expected(RowProblem.TOO_LARGE),
    "giant_beyond_pillow": Expected(RowProblem.TOO_LARGE),
    "floating_point": Expected(RowProblem.FLOATING_POINT),
    **dict.fromkeys(
        ("empty", "random", "web_page", "large_file_pointer", "vector", "text_bomb", *CUT_IN_HEADER),
        Expected(RowProblem.UNREADABLE),
    ),
    **dict.fromkeys(
        ("cut_png", "cut_jpeg", "flipped_byte"),
        Expected(RowProblem.DAMAGED, in_header=False),
    ),
}

EXPECTED_OF_LINES = {
    **dict.fromkeys(
        ("snow_and_smile", "windows_line", "marked", "long", "padded", "target_of_other_size"), Expected(None)
    ),
    **dict.fromkeys(
        ("absent_source", "nearly_named", "folder", "null_sign_in_name"), Expected(RowProblem.MISSING_FILE)
    ),
    **dict.fromkeys(("null_source", "empty_source"), Expected(RowProblem.NO_SOURCE)),
    **dict.fromkeys(("null_target", "number_target", "lacks_target"), Expected(RowProblem.NO_TARGET)),
    "broken_target": Expected(RowProblem.UNREADABLE),
    **dict.fromkeys(("blank", "invisible", "null_prompt", "lacks_prompt"), Expected(RowProblem.BLANK_PROMPT)),
    **dict.fromkeys(("number_prompt", "list_prompt"), Expected(RowProblem.PROMPT_NO_TEXT)),
    "windows_apostrophe": Expected(RowProblem.NOT_UTF8),
    "no_json": Expected(RowProblem.NO_ROW),
    "array": Expected(RowProblem.NO_ROW),
}
