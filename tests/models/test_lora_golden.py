"""The layers and sizes of every preset in the released architectures, held by golden files."""

import json
from typing import Any

import pytest
from tests.support.lora_golden import GOLDEN, MODELS, build_on_meta, collapse, describe, expand, presets_of

from physedit.models.backbone import LORA_PRESET_NAMES
from physedit.models.lora_targets import matching_layers

BILLIONS = {"flux_kontext": 11.90, "qwen_image_edit": 20.43, "qwen_image_edit_2511": 20.43}


def golden(model: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((GOLDEN / "lora_targets" / f"{model}.json").read_text())
    return stored


def test_every_released_model_has_a_golden_list() -> None:
    assert {file.stem for file in (GOLDEN / "lora_targets").glob("*.json")} == set(MODELS) == set(BILLIONS)
    assert {file.stem for file in (GOLDEN / "configs").glob("*.json")} == set(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_presets_and_sizes_are_the_golden_ones(model: str) -> None:
    stored = golden(model)
    assert describe(model) == stored, "if that is meant: python -m tests.support.lora_golden"
    assert stored["num_base_parameters"] / 1e9 == pytest.approx(BILLIONS[model], abs=0.01)
    assert tuple(stored["presets"]) == LORA_PRESET_NAMES


@pytest.mark.parametrize("model", MODELS)
def test_collapsed_names_bring_back_every_name(model: str) -> None:
    transformer = build_on_meta(model)
    for preset, targets in presets_of(model, transformer).items():
        layers = matching_layers(transformer, targets)
        assert expand(golden(model)["presets"][preset]["layers"]) == sorted(layers)
        assert collapse(sorted(layers, key=layers.index)) == golden(model)["presets"][preset]["layers"]
