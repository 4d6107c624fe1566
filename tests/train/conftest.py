"""A seeded editor of real classes with an adapter, as training has it."""

from collections.abc import Callable

import pytest
import torch

from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings, add_adapter

RANK = 4


def build_editor() -> FluxKontext:
    editor = FluxKontext(weights="random_tiny", dtype="float32", max_text_tokens=24)
    add_adapter(editor.denoiser, LoraSettings(RANK, 8.0), targets=editor.lora_presets["attention"], seed=0)
    return editor


@pytest.fixture(scope="module")
def editor() -> FluxKontext:
    torch.set_num_threads(1)
    return build_editor()


@pytest.fixture
def new_editor() -> Callable[[], FluxKontext]:
    return build_editor
