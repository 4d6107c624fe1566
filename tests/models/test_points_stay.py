"""Pictures keep their place and their colours from the stored file to the edited picture.

In place of a trained model the transformer returns the true velocity, and the VAE is exact on pictures that are plain
in every cell, so that whatever moves a point is resizing, normalisation, packing or the pipeline's way back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.qwen_editors import PLUS, V1
from tests.support.true_velocity import arriving_at
from torch import Tensor
from torch.nn import functional

from physedit.data_loaders.sample import EditBatch
from physedit.models.flux_kontext import FluxKontext
from physedit.models.qwen_image_edit import QwenImageEdit

AREA_PX = 256 * 256
CELL_PX = 8
SPAN = 229
"""Levels of a coordinate: a prime, so that rounding to levels errs to both sides at every width."""
PROMPT = "Leave it as it is."
SIZES = [
    (256, 256), (512, 512), (1024, 1024), (64, 64), (683, 1024), (1024, 683), (768, 1024), (1024, 768), (819, 1024),
    (1080, 1920), (1920, 1080), (720, 1280), (480, 640), (333, 500), (500, 333), (101, 67), (257, 255), (1000, 400),
    (400, 1000), (1365, 2048),
]  # fmt: skip
"""Height and width of stored pictures: small, large, of PICABench, of cameras, odd."""
EVALUATED = SIZES[1:9]

Editor = FluxKontext | QwenImageEdit


def kontext() -> Editor:
    return FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=24, area_px=AREA_PX)


def qwen() -> Editor:
    return QwenImageEdit(weights="random_tiny", dtype="float32", pipeline=V1, area_px=AREA_PX)


def plus() -> Editor:
    return QwenImageEdit(weights="random_tiny", dtype="float32", pipeline=PLUS, area_px=AREA_PX, vision_area_px=64 * 64)


EDITORS: dict[str, Callable[[], Editor]] = {"flux_kontext": kontext, "qwen_image_edit": qwen, "qwen_plus": plus}


@dataclass
class Studio:
    """An editor with an exact VAE and a transformer that knows the answer; ``seen`` are the VAE's inputs, 0..1."""

    editor: Editor
    seen: list[Tensor] = field(default_factory=list)
    answer: Tensor | None = None

    def __post_init__(self) -> None:
        vae: Any = self.editor._pipeline.vae
        vae.encode, vae.decode = self._encode, self._decode

    def train(self, source: Tensor, target: Tensor, *references: Tensor) -> Tensor:
        """Encodes a pair as training does; returns the latents that it is to predict."""
        self.editor.forget()
        self.seen.clear()
        batch = EditBatch(("a",), (source,), (target,), (PROMPT,), (references,) if references else ())
        self.answer = self.editor.encode(batch).target
        return self.answer

    def edit(self, source: Tensor, *references: Tensor) -> Tensor:
        """Edits with the pipeline; returns uint8 ``[3, h, w]``."""
        self.seen.clear()
        assert self.answer is not None
        with arriving_at(self.editor.denoiser, self.answer):
            return self.editor.edit(
                self.editor.denoiser,
                [(source, *references)],
                [PROMPT],
                num_steps=3,
                guidance=1.0,
                generators=[torch.Generator().manual_seed(1)],
            )[0]

    def _encode(self, pixels: Tensor) -> Any:
        frame = pixels[:, :, 0] if pixels.ndim == 5 else pixels
        self.seen.append(frame[0] / 2 + 0.5)
        cells = functional.avg_pool2d(frame, CELL_PX)
        latents = torch.cat([cells, torch.zeros_like(cells[:, :1])], dim=1)
        latents = latents.unsqueeze(2) if pixels.ndim == 5 else latents
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: latents))

    def _decode(self, latents: Tensor, return_dict: bool = True) -> tuple[Tensor]:
        cells = latents[:, :, 0] if latents.ndim == 5 else latents
        # Linear between the cells' centres: exact on a ramp but for the outermost half cells.
        pixels = functional.interpolate(cells[:, :3], scale_factor=CELL_PX, mode="bilinear", align_corners=False)
        return (pixels.unsqueeze(2) if latents.ndim == 5 else pixels,)


@pytest.fixture(scope="module", params=EDITORS)
def studio(request: pytest.FixtureRequest) -> Studio:
    return Studio(EDITORS[request.param]())


def coordinates(height: int, width: int) -> Tensor:
    """Red is the column, green the row, each 0..SPAN from edge to edge at pixel centres; uint8."""
    rows = ((torch.arange(height) + 0.5) * SPAN / height).round()
    columns = ((torch.arange(width) + 0.5) * SPAN / width).round()
    red, green = columns.expand(height, width), rows[:, None].expand(height, width)
    return torch.stack([red, green, torch.zeros(height, width)]).to(torch.uint8)


def largest_move(picture: Tensor) -> float:
    """Returns by how many of its own pixels a point of a coordinate picture (values 0..1) lies off its place.

    A line through all columns but the outermost (where Lanczos overshoots and the toy decoder is flat) finds shift and
    zoom below the rounding to 256 levels; both are greatest at an edge.
    """
    moves = []
    for channel, axis in ((0, 1), (1, 0)):
        values = picture[channel].double().mean(dim=1 - axis) * 255 / SPAN
        size = len(values)
        at = (torch.arange(size, dtype=torch.float64) + 0.5) / size
        inner = slice(CELL_PX, size - CELL_PX)
        columns = torch.stack([torch.ones_like(at), at], dim=1)
        offset, slope = torch.linalg.lstsq(columns[inner], values[inner, None]).solution[:, 0].tolist()
        moves += [abs(offset) * size, abs(offset + slope - 1) * size]
    return max(moves)


def test_the_measure_of_moves_sees_half_a_pixel() -> None:
    still = coordinates(192, 256).double() / 255
    assert largest_move(still) < 0.1
    shifted = torch.roll(still, 1, dims=-1)
    assert largest_move(shifted) == pytest.approx(1, abs=0.1)
    cut = functional.interpolate(still[None, :, 1:-1, 1:-1], size=(192, 256), mode="bilinear", align_corners=False)[0]
    assert largest_move(cut) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("stored", SIZES)
def test_no_point_moves_by_more_than_half_a_pixel(studio: Studio, stored: tuple[int, int]) -> None:
    picture = coordinates(*stored)
    studio.train(picture, picture)
    in_training = {tuple(pixels.shape[-2:]): largest_move(pixels) for pixels in studio.seen}
    edited = studio.edit(picture)
    in_evaluation = {tuple(pixels.shape[-2:]): largest_move(pixels) for pixels in studio.seen}
    sizes = studio.editor.sizes_of(*stored)
    assert in_training.keys() == {sizes.source, sizes.output}
    assert in_evaluation.keys() == {sizes.source}
    # As the evaluation brings an output to its input's size.
    measured = functional.interpolate(edited[None].double() / 255, size=stored, mode="bilinear", align_corners=False)
    moves = {"training": in_training, "evaluation": in_evaluation, "edited": largest_move(edited / 255)}
    assert max(*in_training.values(), *in_evaluation.values(), moves["edited"]) < 0.5, moves
    per_pixel = max(1.0, stored[0] / edited.shape[-2], stored[1] / edited.shape[-1])  # half a pixel of the coarser one
    assert largest_move(measured[0]) < 0.5 * per_pixel, moves


@pytest.mark.parametrize("scale", [2, 3])
def test_a_target_of_another_resolution_keeps_its_points(studio: Studio, scale: int) -> None:
    source, target = coordinates(200, 300), coordinates(200 * scale, 300 * scale)
    studio.train(source, target)
    assert max(largest_move(pixels) for pixels in studio.seen) < 0.5


@pytest.mark.parametrize("stored", EVALUATED)
def test_condition_and_output_have_the_proportions_of_training_at_every_evaluated_size(
    studio: Studio, stored: tuple[int, int]
) -> None:
    picture = coordinates(*stored)
    target = studio.train(picture, picture)
    trained_at = tuple(CELL_PX * cells for cells in target.shape[-2:])
    trained_from = [tuple(pixels.shape[-2:]) for pixels in studio.seen]
    assert trained_at in trained_from
    condition = [size for size in trained_from if size != trained_at] or [trained_at]
    edited = studio.edit(picture)
    assert [tuple(pixels.shape[-2:]) for pixels in studio.seen] == condition
    assert tuple(edited.shape[-2:]) == trained_at
    # Rounding to multiples and the 17 sizes that Kontext prefers; a square brought to 1 MP for 512x512 would be 4.
    (height, width), (out_height, out_width) = condition[0], trained_at
    assert 0.6 < height * width / (out_height * out_width) < 1.6
    assert 0.7 < (width / height) / (out_width / out_height) < 1.4


def test_further_references_are_seen_at_the_sizes_of_training() -> None:
    studio = Studio(plus())
    given = [coordinates(300, 200), coordinates(100, 400), coordinates(64, 64)]
    studio.train(given[0], given[0], *given[1:])
    in_training = {tuple(pixels.shape[-2:]) for pixels in studio.seen}
    studio.edit(*given)
    assert [tuple(pixels.shape[-2:]) for pixels in studio.seen] == [
        studio.editor.sizes_of(*g.shape[-2:]).source for g in given
    ]
    assert {tuple(pixels.shape[-2:]) for pixels in studio.seen} == in_training


def test_pixels_that_reach_the_vae_in_training_are_those_of_the_pipeline(studio: Studio) -> None:
    picture = torch.randint(0, 256, (3, 101, 67), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    studio.train(picture, picture)
    in_training = list(studio.seen)
    studio.edit(picture)
    (condition,) = studio.seen
    assert any(pixels.shape == condition.shape and torch.equal(pixels, condition) for pixels in in_training)


def test_latents_of_training_decode_to_the_target_in_the_stock_pipeline(studio: Studio) -> None:
    """What training adds to and divides latents by, the pipeline takes away again; red and blue are not swapped."""
    cells = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    cells = functional.interpolate(cells[None, :, ::4, ::4].float(), scale_factor=4, mode="nearest")[0].to(torch.uint8)
    red = torch.zeros(3, 256, 256, dtype=torch.uint8)
    red[0] = 255
    target = cells.repeat_interleave(CELL_PX, 1).repeat_interleave(CELL_PX, 2)
    studio.train(red, target)
    edited = studio.edit(red)
    assert edited.shape == target.shape
    inner = torch.zeros(256, 256, dtype=torch.bool)
    for top in range(0, 256, 32):
        for left in range(0, 256, 32):
            inner[top + 8 : top + 24, left + 8 : left + 24] = True  # away from where the decoder mixes two colours
    # One level: the two ways round at different places.
    assert (edited.int() - target.int()).abs()[:, inner].max() <= 1
