"""What estimating tells of memory is what torch's allocator hands out, and of arithmetic what torch counts."""

from dataclasses import dataclass

import pytest
import torch
from tests.support.allocations import peak_bytes
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from physedit.models.backbone import Conditioning
from physedit.models.estimating import shallow
from physedit.models.estimating.architectures import Architecture, flux_architecture, qwen_architecture
from physedit.models.estimating.step import Workload, count_adapter, trace_step
from physedit.models.flux_kontext import FluxKontext
from physedit.models.lora import LoraSettings, add_adapter
from physedit.models.qwen_image_edit import QwenImageEdit
from physedit.models.sizes import PictureSizes
from physedit.train.objective import Draws, FlowMatching

TOLERANCE = 0.10
"""Of the measured peak, relative. What operators take inside on the CPU is not traced."""
TEXT_TOKENS = 40
PIPELINE = "QwenImageEditPipeline"


@dataclass(frozen=True)
class Case:
    weights: str
    rank: int
    micro_batch: int
    gradient_checkpointing: bool | int
    side_px: int
    dtype: str = "float32"
    compute_dtype: str = "float32"


CASES = (
    Case("toy", 4, 2, False, 64),
    Case("toy", 16, 1, True, 128),
    Case("random_tiny", 8, 4, True, 128),
    Case("random_tiny", 32, 1, False, 256),
    Case("toy", 8, 2, False, 128, "bfloat16"),
    Case("toy", 8, 2, 2, 128),
    Case("toy", 8, 2, False, 128, "bfloat16", "bfloat16"),
    Case("toy", 16, 2, True, 256, "bfloat16", "bfloat16"),
)


def editor(family: str, case: Case) -> FluxKontext | QwenImageEdit:
    common = {
        "weights": case.weights,
        "dtype": case.dtype,
        "area_px": case.side_px**2,
        "gradient_checkpointing": case.gradient_checkpointing,
    }
    if family == "flux":
        return FluxKontext(max_text_tokens=TEXT_TOKENS, **common)  # type: ignore[arg-type]
    return QwenImageEdit(pipeline=PIPELINE, **common)  # type: ignore[arg-type]


def architecture_of(family: str, weights: str) -> Architecture:
    return flux_architecture(weights) if family == "flux" else qwen_architecture(weights, PIPELINE)


class Step:
    """One micro batch of a real editor on the CPU, whose conditioning is made anew."""

    def __init__(self, family: str, case: Case, architecture: Architecture) -> None:
        self.case, self.architecture = case, architecture
        self.backbone = editor(family, case)
        self.sizes = self.backbone.sizes_of(case.side_px, case.side_px)
        self.targets = self.backbone.lora_presets["attention_mlp"]
        self.settings = LoraSettings(case.rank, float(case.rank), compute_dtype=getattr(torch, case.compute_dtype))
        self.report = add_adapter(self.backbone.denoiser, self.settings, targets=self.targets, seed=0)
        self.backbone.denoiser.train()

    def __call__(self) -> None:
        conditioning = self._conditioning()
        draws = Draws(noise=torch.randn(conditioning.target.shape), normal=torch.randn(self.case.micro_batch))
        terms = FlowMatching().loss(
            lambda noisy, sigma: self.backbone.velocity(self.backbone.denoiser, noisy, sigma, conditioning),
            conditioning,
            draws,
        )
        terms.loss.backward()  # type: ignore[no-untyped-call]

    def workload(self, *, gradients_wait: bool) -> Workload:
        case = self.case
        return Workload(
            case.micro_batch, self.sizes, 1, TEXT_TOKENS, False, getattr(torch, case.dtype),
            case.gradient_checkpointing, gradients_wait,
        )  # fmt: skip

    def _conditioning(self) -> Conditioning:
        config, dtype = self.architecture.denoiser.config, getattr(torch, self.case.dtype)
        text = {"prompts": torch.randn(self.case.micro_batch, TEXT_TOKENS, config.joint_attention_dim).to(dtype)}  # type: ignore[union-attr, arg-type]
        if self.architecture.family == "flux":
            text["pooled"] = torch.randn(self.case.micro_batch, config.pooled_projection_dim).to(dtype)  # type: ignore[union-attr, arg-type]
        target, source = (self._latents(size).to(dtype) for size in (self.sizes.output, self.sizes.source))
        change = torch.ones(self.case.micro_batch, 1, *target.shape[-2:])
        return Conditioning(target=target, sources=(source,), text=text, change=change, time_shift=0.5)

    def _latents(self, size: tuple[int, int]) -> torch.Tensor:
        factor = self.architecture.vae_factor
        return torch.randn(
            self.case.micro_batch, self.architecture.latent_channels, size[0] // factor, size[1] // factor
        )


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("family", ["flux", "qwen"])
def test_the_peak_of_a_step_is_predicted_within_a_tenth(family: str, case: Case) -> None:
    architecture = architecture_of(family, case.weights)
    step = Step(family, case, architecture)
    step()  # tables of positions are made once
    for wait in (False, True):
        for parameter in step.backbone.denoiser.parameters():
            parameter.grad = None
        if wait:
            step()
        measured = peak_bytes(step)
        found = trace_step(architecture, step.targets, step.settings, step.workload(gradients_wait=wait))
        assert found.peak == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("checkpointing", [False, 2])
@pytest.mark.parametrize("family", ["flux", "qwen"])
def test_the_blocks_that_are_traced_tell_what_all_blocks_take(
    family: str, checkpointing: bool | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = (
        flux_architecture("black-forest-labs/FLUX.1-Kontext-dev@none")
        if family == "flux"
        else qwen_architecture("Qwen/Qwen-Image-Edit@none", PIPELINE)
    )
    workload = Workload(
        micro_batch=1,
        sizes=PictureSizes((64, 64), (64, 64)),
        num_sources=1,
        text_tokens=TEXT_TOKENS,
        has_mask=False,
        dtype=torch.bfloat16,
        gradient_checkpointing=checkpointing,
        gradients_wait=True,
    )
    found = trace_step(architecture, architecture.presets["attention_mlp"], LoraSettings(4, 4.0), workload)
    monkeypatch.setattr(shallow, "_TRACED", 1000)
    assert found == trace_step(architecture, architecture.presets["attention_mlp"], LoraSettings(4, 4.0), workload)


@pytest.mark.parametrize("checkpointing", [False, True, 2])
@pytest.mark.parametrize("family", ["flux", "qwen"])
def test_arithmetic_and_adapter_are_counted_as_torch_counts_them(family: str, checkpointing: bool | int) -> None:
    case = Case("toy", 4, 2, checkpointing, 64)
    architecture = architecture_of(family, "toy")
    step = Step(family, case, architecture)
    adapter = count_adapter(architecture.denoiser, step.targets, step.settings)
    assert (adapter.num_layers, adapter.num_parameters) == (step.report.num_layers, step.report.num_parameters)
    # Taken apart, attention is counted by torch as its matrix products: two forward, four backward.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    found = trace_step(architecture, step.targets, step.settings, step.workload(gradients_wait=True))
    config = architecture.denoiser.config
    width = config.num_attention_heads * config.attention_head_dim  # type: ignore[union-attr, operator]
    num_blocks = config.num_layers + getattr(config, "num_single_layers", 0)  # type: ignore[union-attr, operator]
    product = 2 * case.micro_batch * width * found.num_tokens**2
    # Fused kernels compute one of them again.
    assert found.flops - counter.get_total_flops() == num_blocks * product


def test_the_released_transformers_have_their_published_sizes() -> None:
    flux = flux_architecture("black-forest-labs/FLUX.1-Kontext-dev@none")
    qwen = qwen_architecture("Qwen/Qwen-Image-Edit@none", PIPELINE)
    assert sum(each.numel() for each in flux.denoiser.parameters()) == 11_901_408_320
    assert sum(each.numel() for each in qwen.denoiser.parameters()) == 20_430_401_088
    assert all(each.is_meta for each in [*flux.denoiser.parameters(), *qwen.denoiser.parameters()])
