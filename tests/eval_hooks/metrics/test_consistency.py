import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.metrics.consistency import Consistency, outside_mask, psnr_in_square, psnr_outside
from physedit.eval_hooks.metrics.metric import ItemRecord

HEIGHT, WIDTH = 40, 50


def _pictures(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    first = generator.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    return first, generator.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def _tensor(picture: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(picture).permute(2, 0, 1)


def _reference_mask(boxes: list[Box]) -> np.ndarray:
    """The published evaluator draws its mask with Pillow."""
    image = Image.new("L", (WIDTH, HEIGHT), 255)
    for box in boxes:
        ImageDraw.Draw(image).rectangle([box.x, box.y, box.x + box.width, box.y + box.height], fill=0)
    return np.array(image) > 127


def _reference_psnr(first: np.ndarray, second: np.ndarray, mask: np.ndarray) -> float:
    difference = first.astype(np.float64)[mask] / 255 - second.astype(np.float64)[mask] / 255
    return 20 * math.log10(1 / math.sqrt(np.mean(difference**2)))


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [Box(3.9, 2.2, 5, 7.9)],
        [Box(0, 0, 0, 0)],
        [Box(-5, -5, 12, 9.5), Box(30, 20, 100, 100)],
        [Box(WIDTH + 3, 3, 4, 4)],
        [Box(10.999, 10.001, 20.5, 3.5), Box(12, 9, 3, 30)],
    ],
)
def test_psnr_equals_an_independent_float64_reference(boxes: list[Box]) -> None:
    first, second = _pictures(3)
    expected = _reference_psnr(first, second, _reference_mask(boxes))
    assert psnr_outside(_tensor(first), _tensor(second), boxes) == pytest.approx(expected, abs=1e-9)


def test_mask_truncates_and_includes_both_corners() -> None:
    outside = outside_mask(HEIGHT, WIDTH, [Box(3.9, 0, 5, HEIGHT)])
    assert outside is not None
    assert torch.nonzero(~outside[0]).flatten().tolist() == [3, 4, 5, 6, 7, 8]


def test_no_wrap_around_between_dark_and_light() -> None:
    dark, light = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.full((3, 8, 8), 255, dtype=torch.uint8)
    assert str(psnr_outside(dark, light, [])) == str(psnr_outside(light, dark, [])) == "0.0"


@pytest.mark.parametrize("boxes", [[Box(0, 0, WIDTH, HEIGHT)], [Box(3, 3, -1, 4)]], ids=["full", "negative"])
def test_psnr_is_not_defined_without_pixels_or_without_a_rectangle(boxes: list[Box]) -> None:
    first, second = _pictures(5)
    assert psnr_outside(_tensor(first), _tensor(second), boxes) is None


def test_one_pixel_left_gives_a_value() -> None:
    first, second = _pictures(5)
    boxes = [Box(0, 0, WIDTH, HEIGHT - 2), Box(0, HEIGHT - 1, WIDTH - 2, 0)]
    expected = _reference_psnr(first[-1:, -1:], second[-1:, -1:], np.ones((1, 1), dtype=bool))
    assert psnr_outside(_tensor(first), _tensor(second), boxes) == pytest.approx(expected, abs=1e-9)


def test_equal_pictures_are_capped_at_100_db() -> None:
    first, _ = _pictures(7)
    assert psnr_outside(_tensor(first), _tensor(first), []) == 100.0


@pytest.mark.parametrize(("height", "width"), [(20, 25), (40, 52)])
def test_the_masked_region_does_not_depend_on_the_output_size(height: int, width: int) -> None:
    source = torch.full((3, HEIGHT, WIDTH), 100, dtype=torch.uint8)
    edited = torch.full((3, height, width), 110, dtype=torch.uint8)
    expected = 20 * math.log10(255 / 10)
    # The published evaluator scales in float32, and so does this.
    assert psnr_outside(source, edited, [Box(5, 5, 10, 10)]) == pytest.approx(expected, abs=1e-4)


def test_undefined_items_are_left_out_of_the_mean() -> None:
    records = [
        ItemRecord(index, "Optics", "Reflection", "add", "superficial", (), psnr_db, has_edit_area=True)
        for index, psnr_db in enumerate([20.0, None, 40.0])
    ]
    score = Consistency().score(records)
    assert (score.value, score.n) == (30.0, 2)
    assert score.standard_error == pytest.approx(10.0)


E09_MASKS: dict[str, tuple[list[Box], float | None]] = {
    # All 3 * 2000 values are 10 apart, but for the pixel (0, 0), which is 110 apart.
    "none": ([], (1999 * 10**2 + 110**2) / 2000),
    "full": ([Box(0, 0, WIDTH - 1, HEIGHT - 1)], None),
    "one pixel": ([Box(0, 0, 0, 0)], 10.0**2),
    "outside": ([Box(WIDTH + 1, HEIGHT + 1, 5, 5)], (1999 * 10**2 + 110**2) / 2000),
    "negative width": ([Box(3, 3, -1, 4)], None),
}


@pytest.mark.parametrize("name", E09_MASKS)
def test_e09_every_mask_gives_a_value_or_is_not_defined(name: str) -> None:
    boxes, mean_square = E09_MASKS[name]
    source = torch.full((3, HEIGHT, WIDTH), 100, dtype=torch.uint8)
    edited = source + 10
    edited[:, 0, 0] = 210
    expected = None if mean_square is None else pytest.approx(10 * math.log10(255**2 / mean_square), abs=1e-9)
    assert psnr_outside(source, edited, boxes) == expected


def test_e09_the_mean_over_all_masks_is_finite_and_counts_those_that_are_defined() -> None:
    first, second = _pictures(5)
    values = [psnr_outside(_tensor(first), _tensor(second), boxes) for boxes, _ in E09_MASKS.values()]
    records = [
        ItemRecord(index, "Optics", "Reflection", "add", "superficial", (), value, has_edit_area=True)
        for index, value in enumerate(values)
    ]
    score = Consistency().score(records)
    assert score.n == 3
    assert score.value is not None
    assert math.isfinite(score.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_e10_psnr_of_8_bit_pictures_equals_a_float64_reference(dtype: torch.dtype) -> None:
    first, second = _pictures(11)
    expected = _reference_psnr(first, second, np.ones((HEIGHT, WIDTH), dtype=bool))
    # bfloat16 holds every whole number up to 256.
    found = psnr_outside(_tensor(first).to(dtype), _tensor(second).to(dtype), [])
    assert found == pytest.approx(expected, abs=1e-6)


def _side_by_side(picture: torch.Tensor) -> torch.Tensor:
    return picture.permute(1, 2, 0).contiguous().permute(2, 0, 1)


LAYOUTS = {
    "planes": torch.clone,
    "interleaved": _side_by_side,
    "a part": lambda picture: picture.repeat(1, 2, 2)[:, :300, :301],
}


@pytest.mark.parametrize("edited_layout", LAYOUTS)
@pytest.mark.parametrize("source_layout", LAYOUTS)
@pytest.mark.parametrize("is_extreme", [True, False])
def test_psnr_is_exact_in_every_layout_and_over_many_chunks(
    is_extreme: bool, source_layout: str, edited_layout: str
) -> None:
    source, edited = torch.randint(256, (2, 3, 300, 301), generator=torch.Generator().manual_seed(5)).to(torch.uint8)
    if is_extreme:
        source, edited = torch.zeros_like(source), torch.full_like(edited, 255)
    outside = torch.ones(300, 301, dtype=torch.bool)
    outside[20:51, 10:31] = False
    mean_square = float((source.double() - edited.double())[:, outside].square().mean()) / 255**2
    found = psnr_outside(LAYOUTS[source_layout](source), LAYOUTS[edited_layout](edited), [Box(10, 20, 20, 30)])
    assert found == pytest.approx(-10 * math.log10(mean_square), abs=1e-9)


def test_p02_the_same_region_is_masked_whatever_the_outputs_size() -> None:
    source = torch.full((3, 80, 100), 100, dtype=torch.uint8)
    area = [Box(20, 10, 39, 29)]  # columns 20 to 59, rows 10 to 39
    for width, height in ((100, 80), (50, 40), (104, 80)):
        edited = torch.full((3, height, width), 110, dtype=torch.uint8)
        # What is edited lies well inside the area, so that scaling cannot carry it out.
        rows = slice(round(14 * height / 80), round(36 * height / 80))
        columns = slice(round(24 * width / 100), round(56 * width / 100))
        edited[:, rows, columns] = 255
        expected = 20 * math.log10(255 / 10)
        # The published evaluator scales in float32, and so does this.
        assert psnr_outside(source, edited, area) == pytest.approx(expected, abs=1e-4)
        assert psnr_in_square(source, edited, area) == pytest.approx(expected, abs=1e-4)
        unmasked = psnr_outside(source, edited, [])
        assert unmasked is not None
        assert unmasked < expected - 1


def test_squeezing_scales_the_area_by_each_side() -> None:
    source = torch.full((3, 256, 1024), 100, dtype=torch.uint8)
    edited = source.clone()
    edited[:, :128] = 120
    # Rows 0 to 127 are rows 0 to 255 of the square, of which the lowest is blended with what lies below it.
    assert psnr_in_square(source, edited, [Box(0, 0, 1024, 128)]) == 100.0
    assert psnr_in_square(source, edited, [Box(0, 0, 1024, 120)]) != 100.0


def test_the_mean_square_is_over_channels_too() -> None:
    source = torch.zeros(3, 8, 8, dtype=torch.uint8)
    edited = source.clone()
    edited[0] = 255
    assert psnr_outside(source, edited, []) == pytest.approx(10 * math.log10(3), abs=1e-9)


def test_the_mean_may_be_taken_of_squeezed_pictures() -> None:
    record = ItemRecord(0, "Optics", "Reflection", "add", "x", (), 20.0, has_edit_area=True, psnr_512_db=21.0)
    assert Consistency().score([record]).value == 20.0
    assert Consistency(in_square=True).score([record]).value == 21.0
