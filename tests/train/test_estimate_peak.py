"""The peak that ``physedit estimate`` tells is that of a run: encoding, two steps and their updates."""

import pytest
import torch
from tests.support.allocations import peak_bytes
from torch import nn

from physedit.data_loaders.sample import EditBatch
from physedit.models.backbone import Backbone
from physedit.train.assemble import add_lora
from physedit.train.build import build
from physedit.train.compose import compose_config
from physedit.train.estimate import estimate
from physedit.train.objective import Draws, FlowMatching
from physedit.train.optim import build_optimizer
from physedit.train.state import trainable

TOLERANCE = 0.10
"""Relative. What operators take inside on the CPU is not traced, and an instruction has its own length."""
SIDE = 128
SETTINGS = (
    ("adapter.rank=64", "micro_batch=1"),
    ("adapter.rank=4", "micro_batch=2"),
    ("adapter.rank=16", "micro_batch=1", "backbone.gradient_checkpointing=true"),
    ("adapter.rank=256", "micro_batch=2", "backbone.gradient_checkpointing=true"),
)


def pairs(count: int) -> EditBatch:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (2, count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    prompt = "Remove the red ball from the picture, and with it the shadow that it casts."
    return EditBatch(tuple(map(str, range(count))), tuple(pictures[0]), tuple(pictures[1]), (prompt,) * count)


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
@pytest.mark.parametrize("backbone", ["toy", "toy_qwen_image_edit"])
def test_the_peak_of_a_run_is_predicted_within_a_tenth(backbone: str, settings: tuple[str, ...]) -> None:
    num_samples = int(settings[1].partition("=")[2])
    place = (f"backbone={backbone}", f"backbone.area_px={SIDE**2}", "device=cpu")
    config = compose_config(["experiment=smoke", *place, *settings, f"global_batch={num_samples}"])
    found = estimate(config)
    editor: Backbone = build(config.backbone)
    add_lora(editor, config)
    denoiser: nn.Module = editor.denoiser.train()
    optimizer = build_optimizer(config.optimizer, trainable(denoiser).values())

    def run() -> None:
        for seed in range(2):
            conditioning = editor.encode(pairs(num_samples))
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(conditioning.target.shape, generator=generator)
            draws = Draws(noise=noise, normal=torch.randn(num_samples, generator=generator))
            terms = FlowMatching().loss(
                lambda noisy, sigma, given=conditioning: editor.velocity(denoiser, noisy, sigma, given),
                conditioning,
                draws,
            )
            terms.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    # What lies there before the run would hide an error in what it takes.
    there_before = found.rows["base"] + found.rows["adapter"] + found.rows["encoders"]
    assert found.peak - there_before == pytest.approx(peak_bytes(run), rel=TOLERANCE)
