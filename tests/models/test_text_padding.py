"""How far instructions are padded: as far as the model sees the padding, and no further."""

from collections.abc import Mapping

import pytest
import torch
from tests.support.memory_editors import batch_of, flux, qwen, relative_change, with_adapter
from torch import Tensor
from torch.nn import functional as F

from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Backbone, Conditioning

SHORT, LONG = "Remove the ball.", "Remove the ball, and with it the shadow that it casts and the ripples around it."
# Relative to the norm. Seen: at most 1.3e-6, for sums over rows of another length are taken in another order.
TOLERANCE = 1e-5
PADDING_TOKENS = 24


def of(prompt: str, seed: int) -> EditBatch:
    return batch_of(seed, prompt=prompt)


def both() -> EditBatch:
    first, second = of(SHORT, 1), of(LONG, 2)
    return EditBatch(
        sample_ids=first.sample_ids + second.sample_ids,
        sources=first.sources + second.sources,
        targets=first.targets + second.targets,
        instructions=first.instructions + second.instructions,
    )


def predicted(backbone: Backbone, conditioning: Conditioning, text: Mapping[str, Tensor], row: slice) -> Tensor:
    """Returns the velocity of some rows, each of its own noise, with these text states."""
    noise = torch.randn(conditioning.target.shape, generator=torch.Generator().manual_seed(1))
    part = Conditioning(
        target=conditioning.target[row],
        sources=tuple(source[row] for source in conditioning.sources),
        text=text,
        change=conditioning.change[row],
        time_shift=conditioning.time_shift,
    )
    with torch.no_grad():
        return backbone.velocity(backbone.denoiser, noise[row], torch.full([len(noise)], 0.7)[row], part)


def test_a_batch_for_qwen_is_padded_to_its_longest_instruction_alone() -> None:
    backbone = qwen()
    states = backbone.encode(both()).text
    lengths = [backbone.encode(each).text["prompts"].shape[1] for each in (of(SHORT, 1), of(LONG, 2))]
    assert lengths[0] < lengths[1] == states["prompts"].shape[1]
    assert states["mask"].sum(dim=1).tolist() == lengths
    # Instructions that are alike in length have no padding, and no mask that attention would have to look at.
    assert set(backbone.encode(batch_of(1, 2)).text) == {"prompts"}


@pytest.mark.parametrize("weights", ["random_tiny", "toy"])
def test_padding_that_qwen_is_told_of_changes_nothing(weights: str) -> None:
    backbone = with_adapter(qwen(weights=weights), is_filled=True)
    conditioning = backbone.encode(both())
    text, everything = conditioning.text, slice(None)
    short = predicted(backbone, conditioning, text, everything)
    further = {
        "prompts": F.pad(text["prompts"], (0, 0, 0, PADDING_TOKENS)),
        "mask": F.pad(text["mask"], (0, PADDING_TOKENS)),
    }
    assert relative_change(short, predicted(backbone, conditioning, further, everything)) < TOLERANCE
    for row, (prompt, seed) in enumerate(((SHORT, 1), (LONG, 2))):
        alone = backbone.encode(of(prompt, seed)).text
        assert "mask" not in alone
        found = predicted(backbone, conditioning, alone, slice(row, row + 1))
        assert relative_change(short[row : row + 1], found) < TOLERANCE


@pytest.mark.parametrize("weights", ["random_tiny", "toy"])
def test_padding_of_flux_is_seen_and_stays(weights: str) -> None:
    backbone = with_adapter(flux(weights=weights), is_filled=True)
    conditioning = backbone.encode(of(SHORT, 1))
    text, num_tokens = conditioning.text, len(backbone._pipeline.tokenizer_2(SHORT).input_ids)
    assert num_tokens < text["prompts"].shape[1] == 24
    trimmed = {**text, "prompts": text["prompts"][:, :num_tokens]}
    whole, cut = (predicted(backbone, conditioning, each, slice(None)) for each in (text, trimmed))
    assert relative_change(whole, cut) > 100 * TOLERANCE
