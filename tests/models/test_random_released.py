"""Random weights of the released sizes: refused without a GPU; whole pipelines that train, here with fewer layers."""

from typing import Any

import pytest
import torch
from torch import nn

from physedit.data_loaders.sample import EditBatch
from physedit.models import flux_pipeline, qwen_pipeline, random_released
from physedit.models.backbone import Backbone
from physedit.models.estimating import released
from physedit.models.flux_kontext import FluxKontext
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.train.assemble import check_backbone, outline_of
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.estimate import estimate
from physedit.train.objective import Draws, FlowMatching

SMALL: dict[str, dict[str, Any]] = {
    "FLUX_TRANSFORMER": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 64},
    "T5": {"num_layers": 1, "d_model": 64, "d_ff": 64, "num_heads": 1},
    "QWEN_TRANSFORMER": {"num_layers": 1, "num_attention_heads": 1, "joint_attention_dim": 128},
    "QWEN_TEXT": {
        "num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 1,
        "num_key_value_heads": 1,
    },
    "QWEN_VISION": {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 1, "out_hidden_size": 128},
}  # fmt: skip
SIDE = 64


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the released sizes be small, and be built on the CPU."""
    for name, changes in SMALL.items():
        for key, value in changes.items():
            monkeypatch.setitem(getattr(released, name), key, value)
    monkeypatch.setattr(random_released, "released_device", lambda _: torch.device("cpu"))


def built(family: str, encoders: str = "resident") -> Backbone:
    if family == "flux":
        return FluxKontext(
            weights="random_released", dtype="bfloat16", max_text_tokens=8, area_px=SIDE**2, encoders=encoders  # type: ignore[arg-type]
        )  # fmt: skip
    return QwenImageEdit(
        weights="random_released", dtype="bfloat16", pipeline="QwenImageEditPipeline", area_px=SIDE**2,
        encoders=encoders,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("family", ["flux", "qwen"])
def test_the_pipeline_takes_a_training_step_in_bfloat16(family: str) -> None:
    before = torch.random.get_rng_state()
    editor = built(family)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_default_dtype() == torch.float32
    denoiser: nn.Module = editor.denoiser
    assert {each.dtype for each in denoiser.parameters()} == {torch.bfloat16}
    assert not any(each.requires_grad for each in denoiser.parameters())
    pictures = torch.zeros(3, SIDE, SIDE, dtype=torch.uint8)
    conditioning = editor.encode(EditBatch(("a",), (pictures,), (pictures,), ("Remove the ball.",)))
    draws = Draws(noise=torch.randn(conditioning.target.shape), normal=torch.randn(1))
    terms = FlowMatching().loss(
        lambda noisy, sigma: editor.velocity(denoiser, noisy, sigma, conditioning), conditioning, draws
    )
    assert terms.loss.isfinite()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("family", ["flux", "qwen"])
def test_equal_seeds_give_equal_weights_and_absent_encoders_are_not_built(family: str) -> None:
    first, second = built(family), built(family, encoders="absent")
    for name, value in first.denoiser.state_dict().items():
        assert torch.equal(value, second.denoiser.state_dict()[name]), name
    assert second._parts.pipeline.text_encoder is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["flux_kontext", "qwen_image_edit", "qwen_image_edit_plus"])
def test_it_is_refused_without_a_gpu_before_anything_is_built(name: str) -> None:
    assert not torch.cuda.is_available()
    recipe = "pica100k_kontext" if name == "flux_kontext" else "pica100k_qwen_image_edit"
    given = [f"experiment={recipe}", f"backbone={name}", "backbone.weights=random_released"]
    config = compose_config(given)
    with pytest.raises(ConfigError, match=r"random_released.*no CUDA device.*random_tiny"):
        check_backbone(config)
    with pytest.raises(ValueError, match="no CUDA device"):
        flux_pipeline.load_pipeline("random_released", torch.bfloat16)
    with pytest.raises(ValueError, match="no CUDA device"):
        qwen_pipeline.load_pipeline("QwenImageEditPipeline", "random_released", torch.bfloat16)
    config.backbone.quantization = "bnb_nf4"
    with pytest.raises(ConfigError, match=r"read from files|no CUDA device"):
        check_backbone(config)


def test_its_sizes_and_text_limits_are_told_without_a_gpu() -> None:
    config = compose_config(["experiment=pica100k_qwen_image_edit", "backbone.weights=random_released"])
    outline = outline_of(config)
    assert outline.sizes_of(1024, 1024).output == (1024, 1024)
    assert all(limit.count is not None for limit in outline.text_limits)


def test_it_is_estimated_as_the_released_weights_are() -> None:
    config = compose_config(["experiment=pica100k_kontext", "backbone.weights=random_released", "adapter.rank=4"])
    assert estimate(config).num_base == 11_901_408_320
