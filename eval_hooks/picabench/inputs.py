"""The pictures that editors are given: those of the benchmark, brought down to the published size. Pure.

Shape legend: H W pixels.
"""

import io
from collections.abc import Callable, Sequence

from torch import Tensor

from physedit.data_loaders.geometry import resized
from physedit.data_loaders.images import shown_size
from physedit.eval_hooks.picabench.benchmark import BenchmarkItem
from physedit.models.sizes import PictureSizes

LONG_SIDE_PX = 1024
"""Source: PICABench (arXiv 2510.17681, section 4.1): inputs have a long side of at most so many pixels."""
INPUT_RULE = f"long side brought down to {LONG_SIDE_PX} px by Lanczos where it is longer; boxes stay as they are"
"""In words, for the manifest: PICABench's boxes lie in the frame whose long side has so many pixels already."""


def input_size(item: BenchmarkItem) -> tuple[int, int]:
    """Returns H and W of ``input_picture``, from the stored picture's header."""
    height, width = shown_size(io.BytesIO(item.encoded), item.origin)
    longest = max(height, width)
    if longest <= LONG_SIDE_PX:
        return height, width
    return max(1, round(height * LONG_SIDE_PX / longest)), max(1, round(width * LONG_SIDE_PX / longest))


def input_picture(item: BenchmarkItem) -> Tensor:
    """Returns what the editor is given and ``input_img/`` holds: uint8 RGB ``[3, H, W]``."""
    return resized(item.source, *input_size(item))


def sizes_in_words(items: Sequence[BenchmarkItem], sizes_of: Callable[[int, int], PictureSizes]) -> dict[str, str]:
    """Returns what an editor makes of every size of input, as width x height, for the manifest.

    Args:
        items: whose inputs are edited.
        sizes_of: the editor's size rule.
    """
    found = {}
    for height, width in sorted({input_size(item) for item in items}):
        sizes = sizes_of(height, width)
        shown = [f"{side_width}x{side_height}" for side_height, side_width in (sizes.source, sizes.output)]
        found[f"{width}x{height}"] = f"seen at {shown[0]}, drawn at {shown[1]}"
    return found
