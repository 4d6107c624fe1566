"""A box means the same region in whatever unit it is given, and none without a unit."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.judges.box_units import BoxUnit, box_in_frame
from physedit.eval_hooks.judges.protocols import StrictProtocol

SIZES = [(512, 512), (1000, 1000), (1080, 1920), (3000, 700)]
"""Width and height."""
PART = (0.25, 0.5, 0.25, 0.25)
"""Where the red rectangle lies: left, top, width and height as shares of the picture's."""


def boxes(width: int, height: int) -> dict[BoxUnit, Box]:
    """The rectangle in every unit."""
    sides = (width, height, width, height)
    scale = 1024 / max(width, height)
    return {
        BoxUnit.PICTURE_PX: Box(*(share * side for share, side in zip(PART, sides, strict=True))),
        BoxUnit.THOUSANDTHS: Box(*(share * 1000 for share in PART)),
        BoxUnit.FRAME_1024: Box(*(share * side * scale for share, side in zip(PART, sides, strict=True))),
    }


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_e08_a_box_in_each_unit_is_brought_to_the_same_crop(width: int, height: int) -> None:
    picture = torch.zeros(3, height, width, dtype=torch.uint8)
    left, top, across, down = (round(share * side) for share, side in zip(PART, (width, height) * 2, strict=True))
    picture[0, top : top + down, left : left + across] = 255
    given = boxes(width, height)
    framed = [box_in_frame(box, unit, width, height) for unit, box in given.items()]
    for box in framed:
        assert [box.x, box.y, box.width, box.height] == pytest.approx(
            [framed[0].x, framed[0].y, framed[0].width, framed[0].height], abs=1.0
        )
    crops = []
    for unit, box in given.items():
        content = StrictProtocol(unit).shown(picture, box)
        assert content is not None
        with Image.open(io.BytesIO(content)) as opened:
            crops.append(np.asarray(opened.convert("RGB")).astype(int))
    for crop in crops:
        # The rectangle and its margin of 20 frame pixels on each side fill the crop.
        red = (crop[..., 0] > 128) & (crop[..., 1] < 100)
        scale = max(crop.shape[:2]) / (max(framed[0].width, framed[0].height) + 40)
        expected = framed[0].width * framed[0].height * scale**2
        assert red.sum() == pytest.approx(expected, rel=0.03)
        assert crop.shape == crops[0].shape
        assert np.abs(crop - crops[0]).max() <= 2


@pytest.mark.parametrize("unit", [None, "pixels", ""])
def test_e08_a_box_without_a_stated_unit_is_refused(unit: str | None) -> None:
    with pytest.raises(ValueError, match=r"frame_1024, picture_px, thousandths.*without a stated unit"):
        StrictProtocol(unit)  # type: ignore[arg-type]
