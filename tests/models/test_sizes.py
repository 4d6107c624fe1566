"""The size rules are those of the stock pipelines, for pictures of any size."""

import itertools

import pytest
import torch
from diffusers import FluxKontextPipeline
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit import calculate_dimensions
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions as plus_dimensions
from PIL import Image

from physedit.data_loaders.sample import PictureSizeError
from physedit.models.flux_pipeline import load_pipeline
from physedit.models.sizes import RELEASED_AREA_PX, kontext_sizes, qwen_size

STORED = [*itertools.product((64, 101, 683, 768, 1024, 2047, 3000), (64, 67, 1024, 1216, 1536, 4000))]
"""Heights and widths, from 64x64 to 4000x3000."""


class _SizesSeenError(Exception):
    pass


def sizes_of_the_pipeline(
    pipeline: FluxKontextPipeline, height: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns what the stock call makes of a picture when its own height and width are passed: source and output."""
    seen: list[tuple[int, int]] = []

    def prepare(image: torch.Tensor, batch: int, channels: int, out_height: int, out_width: int, *_: object) -> None:
        seen.extend([tuple(image.shape[-2:]), (out_height, out_width)])
        raise _SizesSeenError

    monkeypatch.setattr(pipeline, "prepare_latents", prepare)
    with pytest.raises(_SizesSeenError):
        pipeline(image=Image.new("RGB", (width, height)), prompt="a", height=height, width=width, max_sequence_length=8)
    return seen[0], seen[1]


@pytest.mark.parametrize(("height", "width"), STORED)
def test_kontext_sizes_are_those_of_the_stock_call(height: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = load_pipeline("random_tiny", torch.float32)
    sizes = kontext_sizes(height, width, area_px=RELEASED_AREA_PX, multiple_px=16)
    assert (sizes.source, sizes.output) == sizes_of_the_pipeline(pipeline, height, width, monkeypatch)


@pytest.mark.parametrize(
    ("stored", "output"), [((683, 1024), (832, 1248)), ((768, 1024), (880, 1168)), ((819, 1024), (912, 1136))]
)
def test_kontext_outputs_are_those_published_for_picabench(stored: tuple[int, int], output: tuple[int, int]) -> None:
    assert kontext_sizes(*stored, area_px=RELEASED_AREA_PX, multiple_px=16).output == output


@pytest.mark.parametrize(("height", "width"), STORED)
@pytest.mark.parametrize("area_px", [RELEASED_AREA_PX, 384 * 384])
def test_qwen_size_is_the_pipelines(height: int, width: int, area_px: int) -> None:
    found = qwen_size(height, width, area_px=area_px)
    assert found[::-1] == calculate_dimensions(area_px, width / height)[:2] == plus_dimensions(area_px, width / height)


@pytest.mark.parametrize(
    ("stored", "output"), [((683, 1024), (832, 1248)), ((768, 1024), (896, 1184)), ((819, 1024), (928, 1152))]
)
def test_qwen_outputs_are_those_published_for_picabench(stored: tuple[int, int], output: tuple[int, int]) -> None:
    assert qwen_size(*stored, area_px=RELEASED_AREA_PX) == output


def test_small_area_keeps_square_pictures_as_they_are() -> None:
    sizes = kontext_sizes(64, 64, area_px=4096, multiple_px=8)
    assert sizes.source == sizes.output == qwen_size(64, 64, area_px=4096) == (64, 64)


def test_picture_that_would_lose_a_side_is_refused() -> None:
    with pytest.raises(PictureSizeError, match=r"10x4000 is too long and narrow .* below 16"):
        kontext_sizes(4000, 10, area_px=1024, multiple_px=16)
    with pytest.raises(PictureSizeError, match=r"10x4000 is too long and narrow .* Crop it"):
        qwen_size(4000, 10, area_px=4096)
