import pytest
import torch
from diffusers.image_processor import VaeImageProcessor

from physedit.data_loaders.geometry import as_image, fitted_target, has_aspect_of, resized

SIZES = [(64, 64), (48, 96), (96, 48), (33, 50), (128, 64), (57, 61), (200, 100), (40, 300)]


def coordinates(height: int, width: int) -> torch.Tensor:
    """Red is the column, green the row, each 0..255 from edge to edge at pixel centres."""
    rows = ((torch.arange(height) + 0.5) * 255 / height).round()
    columns = ((torch.arange(width) + 0.5) * 255 / width).round()
    red, green = columns.expand(height, width), rows[:, None].expand(height, width)
    return torch.stack([red, green, torch.zeros(height, width)]).to(torch.uint8)


def noise(height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_picture_of_the_right_size_is_untouched(height: int, width: int) -> None:
    assert torch.equal(resized(noise(height, width), height, width), noise(height, width))


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_resize_is_the_pipelines_bit_for_bit(height: int, width: int) -> None:
    theirs = VaeImageProcessor(vae_scale_factor=16).resize(as_image(noise(height, width)), 48, 80)
    assert as_image(resized(noise(height, width), 48, 80)).tobytes() == theirs.tobytes()


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_no_point_moves_by_more_than_half_a_pixel(height: int, width: int) -> None:
    out_height, out_width = 64, 64
    result = resized(coordinates(height, width), out_height, out_width).double()
    for axis, size, out_size in ((0, width, out_width), (1, height, out_height)):
        at = (torch.arange(out_size) + 0.5) * 255 / out_size
        seen = result[axis].mean(dim=0 if axis == 0 else 1)
        half_pixel = 0.5 * max(size / out_size, 1) * 255 / size
        inner = slice(4, out_size - 4)  # Lanczos overshoots at the border
        # One level of rounding where a pixel is worth less than a level.
        assert (seen - at).abs()[inner].max() <= half_pixel + 1


def test_target_at_twice_the_size_lands_on_the_same_points() -> None:
    source = coordinates(60, 100)
    target = fitted_target(coordinates(120, 200), source, 32, 48)
    difference = (resized(source, 32, 48).int() - target.int()).abs()
    assert difference[:, 3:-3, 3:-3].max() <= 2  # rounding of the two ramps


def test_target_of_another_aspect_gives_its_centre() -> None:
    source, wide = coordinates(64, 64), coordinates(64, 128)
    target = fitted_target(wide, source, 64, 64)
    assert torch.equal(target, wide[..., 32:96])
    assert not has_aspect_of(wide, source)


def test_aspect_is_that_of_the_other_to_within_one_pixel() -> None:
    assert has_aspect_of(coordinates(120, 199), coordinates(60, 100))
    assert not has_aspect_of(coordinates(120, 190), coordinates(60, 100))
