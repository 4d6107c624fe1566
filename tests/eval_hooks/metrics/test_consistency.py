import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.metrics.consistency import Consistency, outside_mask, psnr_outside
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
    assert psnr_outside(dark, light, []) == psnr_outside(light, dark, []) == pytest.approx(0.0, abs=1e-12)


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
