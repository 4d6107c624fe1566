"""Which layers a regular expression names, and what is said of one that names none."""

import re

import pytest
from torch import nn

from physedit.models.lora_targets import matching_layers
from physedit.models.random_tiny import build_random_tiny


@pytest.fixture(scope="module")
def transformer() -> nn.Module:
    return build_random_tiny(0).transformer


def refusal(transformer: nn.Module, *targets: str) -> str:
    with pytest.raises(ValueError, match="targets") as refused:
        matching_layers(transformer, targets)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_layers_come_in_module_order_and_once(transformer: nn.Module) -> None:
    found = matching_layers(transformer, (r"single_transformer_blocks\.1\.attn\.to_[qk]", r".*\.1\.attn\.to_q"))
    assert found == [
        "transformer_blocks.1.attn.to_q",
        "single_transformer_blocks.1.attn.to_q",
        "single_transformer_blocks.1.attn.to_k",
    ]


def test_every_target_must_match_something(transformer: nn.Module) -> None:
    message = refusal(transformer, r"transformer_blocks\.\d+\.attn\.to_q", r"transformer_blocks\.\d+\.attn\.to_qq")
    assert message.startswith(r"adapter.targets has 'transformer_blocks\\.\\d+\\.attn\\.to_qq', which matches none")
    assert "transformer_blocks.N.attn.to_q" in message


@pytest.mark.parametrize(("target", "num_layers"), [("to_q", 4), ("attn.to_q", 4), (r"attn\.add_[qkv]_proj", 6)])
def test_the_end_of_a_name_gets_the_pattern_that_matches(transformer: nn.Module, target: str, num_layers: int) -> None:
    message = refusal(transformer, target)
    meant = rf".*\.{target}"
    assert f"Did you mean {meant!r}? That is {num_layers} layers" in message
    assert len(matching_layers(transformer, (meant,))) == num_layers


def test_alternatives_are_kept_together_in_the_pattern_that_matches(transformer: nn.Module) -> None:
    suggested = re.search(r"Did you mean '(.*)'\?", refusal(transformer, "to_q|to_k"))
    assert suggested is not None
    pattern = suggested[1].replace("\\\\", "\\")
    assert len(matching_layers(transformer, (pattern,))) == 8


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("to_qq", "attn.to_q"),
        ("add_qproj", "attn.add_q_proj"),
        (r"transformer_block\.\d+\.attn\.to_v", "transformer_blocks.N.attn.to_v"),
        ("transformer_blocks.0.attn.to_out", "transformer_blocks.N.attn.to_out.0"),
        ("x_embeder", "x_embedder"),
    ],
)
def test_a_misspelt_target_gets_its_near_match(transformer: nn.Module, target: str, near: str) -> None:
    assert near in refusal(transformer, target)


def test_a_target_far_from_all_gets_the_names_there_are(transformer: nn.Module) -> None:
    assert "Their names are such as" in refusal(transformer, "down_blocks")


def test_a_target_that_is_no_regular_expression_is_named(transformer: nn.Module) -> None:
    assert "has 'attn.(to_q', which is no regular expression" in refusal(transformer, "attn.(to_q")


def test_no_targets_are_refused(transformer: nn.Module) -> None:
    assert "No LoRA targets" in refusal(transformer)
