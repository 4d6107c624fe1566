"""What tells one adapter from another."""

import torch
from tests.support.memory_editors import EDITORS

from physedit.eval_hooks.hook import weights_digest
from physedit.models.lora import LoraSettings, adapter_state, add_adapter
from physedit.train.adapter_settings import adapter_id


def test_an_adapter_is_another_one_in_another_dtype_of_its_products_and_with_other_weights() -> None:
    found = []
    for seed, dtype in ((0, torch.float32), (0, torch.bfloat16), (1, torch.bfloat16)):
        backbone = EDITORS["flux_kontext"](dtype="bfloat16")
        settings = LoraSettings(4, 8.0, compute_dtype=dtype)
        add_adapter(backbone.denoiser, settings, targets=backbone.lora_presets["attention"], seed=seed)
        weights = adapter_state(backbone.denoiser)
        found.append((adapter_id(backbone.denoiser, weights), weights_digest(weights)))
    (single, single_weights), (half, half_weights), (other, _) = found
    assert single == single_weights == half_weights
    assert len({single, half, other}) == 3
