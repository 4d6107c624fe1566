"""The text encoder's positions: its own with the hook, lost without it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import diffusers
import pytest
import torch
import transformers
from tests.support.qwen_editors import PLUS, PROMPT, V1, picture
from torch import Tensor, nn

from physedit.data_loaders.geometry import as_image
from physedit.models.qwen_pipeline import EditPipeline
from physedit.models.qwen_positions import own_positions, positions_are_lost
from physedit.models.random_tiny_qwen import build_random_tiny_qwen

SIZES = [(128, 64), (64, 128), (84, 84)]
"""Heights and widths; the first is seen as 4x2 merged patches of 28 pixels."""


def make(pipeline: EditPipeline) -> Any:
    made = build_random_tiny_qwen(getattr(diffusers, pipeline), 0, zero_cond_t=False)
    made.text_encoder.eval()
    return made


def encode(pipeline: Any, prompts: Sequence[str], num_pictures: int) -> Tensor:
    """Returns the states that the stock pipeline makes of prompts and all pictures."""
    images = [as_image(picture(*size, seed=seed)) for seed, size in enumerate(SIZES[:num_pictures])]
    with torch.no_grad():
        states: Tensor = pipeline.encode_prompt(prompt=list(prompts), image=images)[0]
    return states


@contextmanager
def inputs_of(module: nn.Module) -> Iterator[list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    handle = module.register_forward_pre_hook(lambda _, args, inputs: seen.append(inputs), with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def expected_positions(encoder: Any, inputs: dict[str, Any]) -> Tensor:
    """What the model's own function says; only the type of each token is ours, from the tokenizer's placeholder."""
    positions: Tensor = encoder.model.get_rope_index(
        inputs["input_ids"],
        image_grid_thw=inputs["image_grid_thw"],
        attention_mask=inputs["attention_mask"],
        mm_token_type_ids=(inputs["input_ids"] == encoder.config.image_token_id).int(),
    )[0]
    return positions


@pytest.mark.parametrize(("pipeline", "num_pictures"), [(V1, 1), (PLUS, 1), (PLUS, 2), (PLUS, 3)])
def test_positions_that_reach_the_language_model_are_its_own(pipeline: EditPipeline, num_pictures: int) -> None:
    made = make(pipeline)
    own_positions(made.text_encoder)
    with inputs_of(made.text_encoder) as given, inputs_of(made.text_encoder.model.language_model) as reached:
        encode(made, [PROMPT], num_pictures)
    assert len(given) == len(reached) == 1
    positions = reached[0]["position_ids"]
    assert positions.shape == (3, 1, given[0]["input_ids"].shape[1])
    assert torch.equal(positions, expected_positions(made.text_encoder, given[0]))


def test_positions_of_a_batch_with_padding_are_its_own() -> None:
    made = make(V1)
    assert made.processor.tokenizer.padding_side == "right"
    own_positions(made.text_encoder)
    with inputs_of(made.text_encoder) as given, inputs_of(made.text_encoder.model.language_model) as reached:
        encode(made, [PROMPT, PROMPT + " Make it night."], 2)
    assert not given[0]["attention_mask"].all()
    assert torch.equal(reached[0]["position_ids"], expected_positions(made.text_encoder, given[0]))


def test_a_picture_has_frame_row_and_column() -> None:
    made = make(V1)
    own_positions(made.text_encoder)
    with inputs_of(made.text_encoder) as given, inputs_of(made.text_encoder.model.language_model) as reached:
        encode(made, [PROMPT], 1)
    is_picture = (given[0]["input_ids"] == made.text_encoder.config.image_token_id)[0]
    start = int(is_picture.nonzero()[0])
    frames, rows, columns = reached[0]["position_ids"][:, 0]
    # 64x128 pixels are brought to 56x140: 2 columns and 5 rows of 28 pixels.
    assert (frames[is_picture] == start).all()
    assert (rows[is_picture] - start).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (columns[is_picture] - start).tolist() == [0, 1] * 5
    after = int(is_picture.nonzero()[-1]) + 1
    assert [int(axis[after]) for axis in (frames, rows, columns)] == [start + 5] * 3
    assert torch.equal(frames[:start], torch.arange(start))


def test_without_the_hook_the_pipeline_gives_one_axis_and_other_states() -> None:
    made = make(V1)
    with inputs_of(made.text_encoder.model.language_model) as reached:
        lost = encode(made, [PROMPT], 1)
    assert reached[0]["position_ids"] is None  # the language model then counts the tokens
    own_positions(made.text_encoder)
    kept = encode(made, [PROMPT], 1)
    assert (lost - kept).norm() / kept.norm() > 1e-2


def test_two_calls_install_one_hook() -> None:
    encoder = make(V1).text_encoder
    for _ in range(2):
        own_positions(encoder)
    assert len(encoder._forward_pre_hooks) == 1


def test_token_types_that_are_given_stay() -> None:
    made = make(V1)
    own_positions(made.text_encoder)
    tokens = made.processor.tokenizer("A ball falls.", return_tensors="pt").input_ids
    types = torch.zeros_like(tokens)
    with inputs_of(made.text_encoder.model) as reached, torch.no_grad():
        made.text_encoder(input_ids=tokens, mm_token_type_ids=types)
    assert reached[0]["mm_token_type_ids"] is types


def test_nothing_is_installed_where_the_encoder_takes_no_token_types() -> None:
    class Old(nn.Module):
        def forward(self, input_ids: Tensor) -> Tensor:
            return input_ids

    encoder = Old()
    own_positions(encoder)
    assert not encoder._forward_pre_hooks


def test_the_installed_versions_lose_the_positions() -> None:
    assert positions_are_lost()


def test_positions_are_kept_by_an_encoder_that_needs_no_token_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: object, input_ids: Tensor) -> Tensor:
        return input_ids

    monkeypatch.setattr(transformers.Qwen2_5_VLForConditionalGeneration, "forward", forward)
    assert not positions_are_lost()


def test_positions_are_kept_by_pipelines_that_pass_token_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_with_types(self: Any, inputs: Any) -> Any:
        return self.text_encoder(mm_token_type_ids=inputs["mm_token_type_ids"])

    for name in (V1, PLUS):
        monkeypatch.setattr(getattr(diffusers, name), "_get_qwen_prompt_embeds", encode_with_types)
    assert not positions_are_lost()
