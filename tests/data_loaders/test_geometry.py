import pytest
import torch

from physedit.data_loaders.geometry import cover_and_crop, resize_cover_and_crop

SIZES = [(64, 64), (48, 96), (96, 48), (33, 50), (128, 64), (57, 61), (200, 100), (40, 300)]


def coordinates(height: int, width: int) -> torch.Tensor:
    """Red is the column, green the row, each 0..255 from edge to edge at pixel centres."""
    rows = ((torch.arange(height) + 0.5) * 255 / height).round()
    columns = ((torch.arange(width) + 0.5) * 255 / width).round()
    red, green = columns.expand(height, width), rows[:, None].expand(height, width)
    return torch.stack([red, green, torch.zeros(height, width)]).to(torch.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_picture_of_the_right_size_is_untouched(height: int, width: int) -> None:
    picture = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(cover_and_crop(picture, height, width), picture)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_no_point_moves_by_more_than_half_a_pixel(height: int, width: int) -> None:
    out_height, out_width = 64, 64
    result = cover_and_crop(coordinates(height, width), out_height, out_width).double()
    scale = min(height / out_height, width / out_width)
    for axis, size, out_size in ((0, width, out_width), (1, height, out_height)):
        kept = out_size * scale
        at = ((torch.arange(out_size) + 0.5) * scale + (size - kept) / 2) * 255 / size
        seen = result[axis].mean(dim=0 if axis == 0 else 1)
        half_pixel = 0.5 * scale * 255 / size
        inner = slice(4, out_size - 4)  # Lanczos overshoots at the border
        # One level of rounding where a pixel is worth less than a level.
        assert (seen - at).abs()[inner].max() <= half_pixel + 1


def test_both_pictures_of_a_pair_get_the_same_map() -> None:
    picture = coordinates(70, 110)
    source, target = resize_cover_and_crop(picture, picture.clone(), height_px=32, width_px=48)
    assert source.shape == (3, 32, 48)
    assert torch.equal(source, target)


def test_target_at_twice_the_size_lands_on_the_same_points() -> None:
    source, target = resize_cover_and_crop(coordinates(60, 100), coordinates(120, 200), height_px=32, width_px=32)
    assert (source.int() - target.int()).abs()[:, 3:-3, 3:-3].max() <= 2  # rounding of the two ramps


def test_pictures_of_unlike_aspect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"100x60.*100x80"):
        resize_cover_and_crop(coordinates(60, 100), coordinates(80, 100), height_px=32, width_px=32)
