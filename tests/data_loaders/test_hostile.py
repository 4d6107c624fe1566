"""What becomes of odd and broken rows: read by stated rules, or refused by name with a reason that can be counted."""

import io
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps
from tests.data_loaders.hostile import (
    HOSTILE_COLUMNS,
    Expected,
    chunk,
    encoded,
    instruction_of,
    noisy,
    plain,
    write_hostile,
)

from physedit.data_loaders import images
from physedit.data_loaders.pairs import Pairs
from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.sample import DatasetRowError, EditDataset, EditSample, Origin, PromptLevel

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
LEVEL = PromptLevel.EXPLICIT


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[EditDataset, dict[str, Expected]]:
    folder = tmp_path_factory.mktemp("hostile") / "set"
    fates = write_hostile(folder)
    return Pairs(path=str(folder), **HOSTILE_COLUMNS), fates


def read(dataset: EditDataset, index: int) -> EditSample | DatasetRowError:
    try:
        return dataset.sample(index, LEVEL)
    except DatasetRowError as error:
        return error


def sample_named(hostile: tuple[EditDataset, dict[str, Expected]], name: str) -> EditSample:
    dataset, fates = hostile
    return dataset.sample(list(fates).index(name), LEVEL)


def test_there_are_enough_hostile_rows(hostile) -> None:
    _, fates = hostile
    assert len(fates) == 74
    assert sum(not fate.is_usable for fate in fates.values()) == 34


def test_one_pass_gives_every_usable_row_once_and_counts_each_other_by_reason(hostile) -> None:
    """A08, A19: nothing ends the pass, no neighbour comes twice, and every drop has a reason."""
    dataset, fates = hostile
    results = [read(dataset, index) for index in range(len(dataset))]
    names = [name for name, result in zip(fates, results, strict=True) if isinstance(result, EditSample)]
    assert names == [name for name, fate in fates.items() if fate.is_usable]
    assert [result.instruction for result in results if isinstance(result, EditSample)] == list(
        map(instruction_of, names)
    )
    reasons = Counter(result.reason for result in results if isinstance(result, DatasetRowError))
    assert reasons == Counter(fate.reason for fate in fates.values() if fate.reason)
    assert set(reasons) <= set(RowProblem)


def test_a_refusal_names_file_and_row_or_line(hostile) -> None:
    dataset, fates = hostile
    for index, (name, fate) in enumerate(fates.items()):
        if not fate.is_usable:
            message = str(read(dataset, index))
            assert "metadata.jsonl" in message, name
            assert f"row {index}" in message or f"Line {index + 1} " in message, (name, message)


def test_headers_tell_the_sizes_that_decoding_gives_and_the_reasons_that_need_none(hostile) -> None:
    dataset, fates = hostile
    for index, (name, fate) in enumerate(fates.items()):
        header = dataset.header(index)
        assert header.problem == (fate.reason if fate.in_header else None), name
        if fate.is_usable:
            sample = dataset.sample(index, LEVEL)
            assert header.source == tuple(sample.source.shape[1:]) == fate.source_size, name
            assert header.target == tuple(sample.target.shape[1:]), name


def test_headers_are_read_without_decoding(hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ImageFile.ImageFile) -> None:
        raise AssertionError("a picture was decoded")

    dataset, fates = hostile
    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    problems = [dataset.header(index).problem for index in range(len(dataset))]
    assert problems == [fate.reason if fate.in_header else None for fate in fates.values()]


def test_reason_outlives_the_way_from_a_worker_process(hostile) -> None:
    dataset, fates = hostile
    error = read(dataset, list(fates).index("random"))
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.reason, str(copy)) == (RowProblem.UNREADABLE, str(error))


RED, WHITE = (255, 0, 0), (255, 255, 255)
COLOURS = {
    "alpha": (RED, RED),
    "alpha_hidden": (WHITE, WHITE),
    "grey_alpha": ((177, 177, 177), (177, 177, 177)),  # 100 * 128/255 + 255 * 127/255
    "palette": (RED, (0, 255, 0)),
    "palette_transparent": (RED, WHITE),
    "one_bit": (WHITE, WHITE),
    "grey": ((128, 128, 128), (128, 128, 128)),
    "grey_transparent": (WHITE, WHITE),
    "grey_16_bit": ((128, 128, 128), (128, 128, 128)),
    "colour_16_bit": (RED, RED),
    "cmyk_jpeg": (RED, RED),
    "cmyk_tiff": (RED, RED),
    "animated_gif": (RED, RED),
    "animated_png": (RED, RED),
    "animated_webp": (RED, RED),
    "exif_garbage": (RED, RED),
    "profile_garbage_png": (RED, RED),
    "profile_garbage_jpeg": (RED, RED),
}


@pytest.mark.parametrize("name", COLOURS)
def test_every_mode_and_ground_gives_the_stated_colour(hostile, name: str) -> None:
    """A07, A08: left and right end of the middle row; within 10, which lossy colour needs."""
    source = sample_named(hostile, name).source.permute(1, 2, 0).int().numpy()
    for column, colour in zip((0, -1), COLOURS[name], strict=True):
        assert np.abs(source[source.shape[0] // 2, column] - np.array(colour)).max() <= 10


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_source_and_target_of_a_pair_stand_on_one_ground(tmp_path: Path, mode: str) -> None:
    """A07: what is hidden under transparency is white in the source as the target has it."""
    half = plain((255, 0, 0, 255), "RGBA")
    half.paste((255, 0, 0, 0), (16, 0, 32, 24))
    hidden = encoded(half if mode != "LA" else half.convert("LA"))
    if mode == "P":
        image = Image.new("P", half.size, 0)
        image.putpalette([255, 0, 0, 255, 0, 0])
        image.paste(1, (16, 0, 32, 24))
        hidden = encoded(image, transparency=1)
    target = plain()
    target.paste(WHITE, (16, 0, 32, 24))
    (tmp_path / "in.png").write_bytes(hidden)
    (tmp_path / "out.png").write_bytes(encoded(target))
    (tmp_path / "metadata.jsonl").write_text('{"source": "in.png", "target": "out.png", "instruction": "x"}')
    sample = Pairs(path=str(tmp_path), **HOSTILE_COLUMNS).sample(0, LEVEL)
    assert (sample.source[:, :, 16:] == 255).all()
    assert (sample.target[:, :, 16:] == 255).all()


@pytest.mark.parametrize("tag", range(1, 9))
def test_turned_photo_and_upright_target_have_one_size_and_the_same_corners(tmp_path: Path, tag: int) -> None:
    """A01: for all 8 orientations the header's size is that of the turned picture."""
    upright = plain(WHITE)
    for place, colour in {(0, 0): RED, (24, 0): (0, 255, 0), (0, 16): (0, 0, 255)}.items():
        upright.paste(colour, (*place, place[0] + 8, place[1] + 8))
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    turn = back.get(tag, images._TURNS.get(tag))
    exif = Image.Exif()
    exif[0x0112] = tag
    stored = upright if turn is None else upright.transpose(turn)
    (tmp_path / "in.jpg").write_bytes(encoded(stored, "JPEG", exif=exif, quality=95, subsampling=0))
    (tmp_path / "out.png").write_bytes(encoded(upright))
    (tmp_path / "metadata.jsonl").write_text('{"source": "in.jpg", "target": "out.png", "instruction": "x"}')
    data = Pairs(path=str(tmp_path), **HOSTILE_COLUMNS)
    header, sample = data.header(0), data.sample(0, LEVEL)
    assert header.source == header.target == (24, 32)
    assert sample.source.shape == sample.target.shape
    for row, column in ((2, 2), (2, 29), (21, 2), (21, 29)):
        # JPEG at quality 95 keeps a flat colour to a few levels.
        assert (sample.source[:, row, column].int() - sample.target[:, row, column].int()).abs().max() <= 8


def test_one_giant_among_five_is_refused_by_path_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A09: from its header, so no memory is spent, and the other four arrive."""
    monkeypatch.setattr(images, "MAX_PIXELS", 10_000)
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(encoded(plain(size=(300, 200) if i == 3 else (20, 10))))
    lines = [f'{{"source": "{i}.png", "target": "0.png", "instruction": "x"}}' for i in range(5)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    data = Pairs(path=str(tmp_path), **HOSTILE_COLUMNS)
    results = [read(data, index) for index in range(5)]
    assert [isinstance(result, EditSample) for result in results] == [True, True, True, False, True]
    message = str(results[3])
    assert "300x200" in message
    assert str(tmp_path / "3.png") in message
    assert data.header(3).problem == RowProblem.TOO_LARGE


def test_each_drop_has_a_counted_reason(tmp_path: Path) -> None:
    """A19: ten rows with a null target, a number and a list for a caption, and a picture below the least size."""
    (tmp_path / "fine.png").write_bytes(encoded(plain()))
    (tmp_path / "tiny.png").write_bytes(encoded(plain(size=(4, 4))))
    fine = '{"source": "fine.png", "target": "fine.png", "instruction": "x"}'
    odd = [
        fine.replace('"target": "fine.png"', '"target": null'),
        fine.replace('"x"', "7"),
        fine.replace('"x"', '["x"]'),
        fine.replace('"source": "fine.png"', '"source": "tiny.png"'),
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join([fine] * 6 + odd))
    data = Pairs(path=str(tmp_path), **HOSTILE_COLUMNS, min_side_px=16)
    assert Counter(data.header(index).problem for index in range(10)) == {
        None: 6,
        "no target picture": 1,
        "prompt is no text": 2,
        "too few pixels": 1,
    }
    assert data.name(6).sample_id == "metadata.jsonl:6"


def test_png_with_orientation_behind_its_pixels_tells_the_size_it_is_shown_at() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(plain())
    late = data[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + data[-12:]
    size = images.shown_size(io.BytesIO(late), Origin("f", 0))
    assert size == tuple(images.decode_rgb(late, Origin("f", 0)).shape[1:]) == (32, 24)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("tag", range(1, 9))
def test_orientation_is_the_one_pillow_applies_in_every_format(file_format: str, tag: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = tag
    data = encoded(noisy(), file_format, exif=exif) if file_format != "JPEG2000" else encoded(noisy(), file_format)
    theirs = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    ours = images.decode_rgb(data, Origin("f", 0)).permute(1, 2, 0).numpy()
    assert np.array_equal(ours, theirs)
    assert images.shown_size(io.BytesIO(data), Origin("f", 0)) == theirs.shape[:2]
