import pytest
import torch
from diffusers import FluxKontextPipeline

from physedit.models.latents import CHANGE_THRESHOLD, changed_share, pack, token_positions, unpack

SHAPES = [(8, 8), (2, 14), (10, 6), (4, 2)]


def latents(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_unpack_undoes_pack(height: int, width: int) -> None:
    value = latents(height, width)
    assert torch.equal(unpack(pack(value), height=height, width=width), value)


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_pack_and_unpack_are_the_pipelines(height: int, width: int) -> None:
    value = latents(height, width)
    tokens = FluxKontextPipeline._pack_latents(value, 2, 3, height, width)
    assert torch.equal(pack(value), tokens)
    theirs = FluxKontextPipeline._unpack_latents(tokens, 8 * height, 8 * width, vae_scale_factor=8)
    assert torch.equal(unpack(tokens, height=height, width=width), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_the_pipelines_with_the_reference_marked(dtype: torch.dtype) -> None:
    target, source = latents(8, 6), latents(4, 10)
    theirs_target = FluxKontextPipeline._prepare_latent_image_ids(1, 4, 3, "cpu", dtype)
    theirs_source = FluxKontextPipeline._prepare_latent_image_ids(1, 2, 5, "cpu", dtype)
    theirs_source[..., 0] = 1
    ours = token_positions(target, source, dtype)
    assert ours.dtype == dtype
    assert torch.equal(ours, torch.cat([theirs_target, theirs_source]))


def test_changed_share_counts_pixels_of_each_cell() -> None:
    source = torch.zeros(1, 3, 8, 16, dtype=torch.uint8)
    target = source.clone()
    target[0, 1, :4, :4] = 200  # a quarter of the left cell, in one colour
    target[0, :, :, 8:] = 255
    assert changed_share(source, target, 8).tolist() == [[[[0.25, 1.0]]]]


def test_faint_noise_is_no_change_and_direction_does_not_matter() -> None:
    limit = round(CHANGE_THRESHOLD * 255)
    dark = torch.full((1, 3, 8, 8), 100, dtype=torch.uint8)
    assert changed_share(dark, dark + limit, 8).item() == 0
    assert changed_share(dark, dark + limit + 1, 8).item() == 1
    assert changed_share(dark + limit + 1, dark, 8).item() == 1


def test_pictures_of_unlike_shape_are_refused() -> None:
    picture = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="two pictures of one shape"):
        changed_share(picture, picture[..., :4], 8)
