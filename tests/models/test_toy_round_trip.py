"""With the shipped weights, what training encodes is what the stock pipeline shows at the end of an edit."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.qwen_editors import V1
from tests.support.true_velocity import arriving_at
from torch import Tensor

import physedit.models
from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.sample import EditBatch
from physedit.models.flux_kontext import FluxKontext
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.toy.pairs import draw_pairs

AREA_PX = 64 * 64
# Seen at least: 37.8 dB with Kontext's toy, 41.3 dB with Qwen's.
LEAST_DB = 35.0
Editor = FluxKontext | QwenImageEdit
TOYS: dict[str, Callable[[], Editor]] = {
    "flux_kontext": lambda: FluxKontext(weights="toy", dtype="float32", max_text_tokens=24, area_px=AREA_PX),
    "qwen_image_edit": lambda: QwenImageEdit(weights="toy", dtype="float32", pipeline=V1, area_px=AREA_PX),
}


@pytest.fixture(scope="module", params=TOYS)
def editor(request: pytest.FixtureRequest) -> Editor:
    return TOYS[request.param]()


def test_every_shipped_editor_is_here() -> None:
    folder = Path(physedit.models.__file__).parent / "toy"
    assert {path.parent.name for path in folder.glob("*/model_index.json")} == TOYS.keys()


def shown(editor: Editor, source: Tensor, target: Tensor) -> Tensor:
    """Returns the picture at which an edit arrives whose transformer leads to the training target's latents."""
    answer = editor.encode(EditBatch(("a",), (source,), (target,), ("remove the box",))).target
    with arriving_at(editor.denoiser, answer):
        return editor.edit(
            editor.denoiser,
            [(source,)],
            ["remove the box"],
            num_steps=4,
            guidance=1.0,
            generators=[torch.Generator().manual_seed(0)],
        )[0]


def test_encoding_and_decoding_give_the_picture_back(editor: Editor) -> None:
    pairs = draw_pairs(7, seed=3)
    for source, target in zip(pairs.source, pairs.physical, strict=True):
        error = (shown(editor, source, target).double() - target).square().mean() / 255**2
        assert -10 * math.log10(error) > LEAST_DB
        nothing_learnt = (source.double() - target).square().mean() / 255**2
        assert error < 0.2 * nothing_learnt  # it is the target that is shown, and not the source


def test_what_is_shown_is_the_vaes_own_round_trip(editor: Editor) -> None:
    """Shift, scale, mean and spread cancel out: they are those that the pipeline takes away."""
    pairs = draw_pairs(7, seed=3)
    vae, process = editor._pipeline.vae, editor._pipeline.image_processor
    for source, target in zip(pairs.source, pairs.physical, strict=True):
        pixels = process.preprocess(as_image(target), 64, 64)
        is_video = isinstance(editor, QwenImageEdit)
        with torch.no_grad():
            mode = vae.encode(pixels.unsqueeze(2) if is_video else pixels).latent_dist.mode()
            decoded = vae.decode(mode, return_dict=False)[0]
        frame = decoded[0, :, 0] if is_video else decoded[0]
        expected = ((frame.clamp(-1, 1) / 2 + 0.5) * 255).round()
        difference = (shown(editor, source, target).double() - expected).abs()
        # Float rounding may tip a value over the edge between two of 256 levels.
        assert difference.max() <= 1
        assert (difference > 0).double().mean() < 0.01


def test_latents_that_are_learnt_decode_to_the_target_and_not_to_the_source(editor: Editor) -> None:
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 64, 64).contiguous()
    blue = red.flip(0)
    # The toys' decoders never saw a plain picture, so only its colour is asked for.
    level = shown(editor, red, blue).double().mean(dim=(1, 2))
    assert level[2] - level[0] > 20, level
    level = shown(editor, blue, red).double().mean(dim=(1, 2))
    assert level[0] - level[2] > 20, level


def test_a_picture_encoded_twice_has_equal_latents(editor: Editor) -> None:
    picture = draw_pairs(7, seed=3).source[0]
    batch = EditBatch(("a",), (picture,), (picture,), ("remove the box",))
    first = editor.encode(batch)
    editor.forget()
    second = editor.encode(batch)
    assert first.target is not second.target
    assert torch.equal(first.target, second.target)
