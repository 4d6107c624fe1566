"""What the numbers of a box count: models and tools differ, and the numbers do not tell."""

from __future__ import annotations

from enum import StrEnum

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.judges.crops import LONG_SIDE_PX


class BoxUnit(StrEnum):
    """Units of boxes that are in use."""

    FRAME_1024 = "frame_1024"
    """Pixels of the picture scaled so that its long side is 1024: PICABench's."""
    PICTURE_PX = "picture_px"
    """Pixels of the picture as it is stored, or as a model resized it before it answered."""
    THOUSANDTHS = "thousandths"
    """0 to 1000 along each side, whatever the picture's size."""


def box_unit_of(name: str | None) -> BoxUnit:
    """Returns the unit of this name.

    Raises:
        ValueError: there is none such, or none is named.
    """
    if name not in tuple(BoxUnit):
        raise ValueError(
            f"judge.box_unit is {name!r}; expected one of {', '.join(BoxUnit)}. A box without a stated unit cannot be "
            "placed: the numbers do not tell what they count."
        )
    return BoxUnit(name)


def box_in_frame(box: Box, unit: BoxUnit, width: int, height: int) -> Box:
    """Returns a box in the frame whose long side is 1024 pixels. Pure.

    Args:
        box: in ``unit``.
        unit: what its numbers count.
        width: of the picture that they are about, in pixels.
        height: likewise.
    """
    if unit is BoxUnit.FRAME_1024:
        return box
    scale = LONG_SIDE_PX / max(width, height)
    across, down = (scale, scale) if unit is BoxUnit.PICTURE_PX else (scale * width / 1000, scale * height / 1000)
    return Box(box.x * across, box.y * down, box.width * across, box.height * down)
