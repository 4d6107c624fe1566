"""Quantised bases: refused where they cannot work, and where they can, frozen and quantised beneath a float32 adapter.

The layers are real and so are their products; only the device check is stood in for, as there is no GPU here.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.memory_editors import (
    EDITORS,
    Editor,
    batch_of,
    edit,
    gradients,
    relative_change,
    velocity,
    with_adapter,
    write_wide,
)
from torch.nn.parallel import DistributedDataParallel

from physedit.models import flux_pipeline, quantization, qwen_pipeline
from physedit.models.lora import LoraSettings, add_adapter, without_adapter
from physedit.models.quantization import PACKAGES, check_compiling, check_quantization, check_sharding, num_quantized
from physedit.train.assemble import check_backbone
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.preflight import check
from physedit.train.rules import check_rules

# Relative change of the velocity in bfloat16 against the unquantised base, twice the most that was seen for the two
# backbones: 0.0084, 0.037, 0.012 and 0.128 of random weights, and of 2 + 2 or 2 blocks.
TOLERANCE = {"torchao_int8": 0.017, "torchao_fp8": 0.074, "bnb_int8": 0.024, "bnb_nf4": 0.26}

Build = Callable[..., Editor]


@pytest.fixture(params=EDITORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=PACKAGES)
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param])
    return str(request.param)


@pytest.fixture
def build(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds from stored weights; quantises on the CPU."""
    write_wide(name, tmp_path, monkeypatch)
    monkeypatch.setattr(quantization, "quantization_device", lambda: torch.device("cpu"))
    # diffusers asks for a GPU of its own accord before it uses bitsandbytes, which on some CPUs packs 4-bit layers anew
    # for evaluation and then cannot train them.
    from diffusers.quantizers.bitsandbytes import bnb_quantizer

    for reader in (bnb_quantizer.BnB4BitDiffusersQuantizer, bnb_quantizer.BnB8BitDiffusersQuantizer):
        monkeypatch.setattr(reader, "validate_environment", lambda self, *args, **kwargs: None)
    if find_spec("bitsandbytes"):
        monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)

    def built(**options: Any) -> Editor:
        return EDITORS[name](**{"weights": str(tmp_path), "dtype": "bfloat16", **options})

    return built


@pytest.mark.parametrize("compute_dtype", [torch.float32, torch.bfloat16])
def test_quantised_base_is_close_and_its_adapter_trains(build: Build, kind: str, compute_dtype: torch.dtype) -> None:
    plain, backbone = build(), build(quantization=kind, gradient_checkpointing=True)
    backbone.to(torch.device("cpu"))
    linears = num_quantized(backbone.denoiser)
    assert linears == sum(isinstance(module, torch.nn.Linear) for module in plain.denoiser.modules())
    conditioning = plain.encode(batch_of(1))
    with torch.no_grad():
        before = velocity(backbone, conditioning)
        assert 0 < relative_change(velocity(plain, conditioning), before) < TOLERANCE[kind]
        with_adapter(backbone, is_filled=False, compute_dtype=compute_dtype)
        assert torch.equal(velocity(backbone, conditioning), before)
    found = gradients(backbone, conditioning)
    parameters = dict(backbone.denoiser.named_parameters())
    assert (
        found.keys() == {n for n, p in parameters.items() if p.requires_grad} == {n for n in parameters if "lora_" in n}
    )
    assert all(found[n].abs().max() > 0 for n in found if "lora_B" in n)
    assert {parameters[n].dtype for n in found} == {value.dtype for value in found.values()} == {torch.float32}
    assert num_quantized(backbone.denoiser) == linears


def test_quantised_base_edits_and_comes_back_without_its_adapter(build: Build, kind: str) -> None:
    backbone, source = build(quantization=kind), batch_of(1).sources[0]
    base = edit(backbone, source)
    with_adapter(backbone, is_filled=True)
    assert not torch.equal(edit(backbone, source), base)
    with without_adapter(backbone.denoiser):
        assert torch.equal(edit(backbone, source), base)


@pytest.mark.parametrize("kind", ["bnb_nf4", "torchao_int8", "torchao_fp8"])
def test_dora_takes_the_lengths_of_the_quantised_rows(build: Build, kind: str) -> None:
    # bnb_int8 is left out: on the CPU alone peft drops its scales when it reads a weight.
    pytest.importorskip(PACKAGES[kind])
    backbone = build(quantization=kind)
    conditioning = backbone.encode(batch_of(1))
    with torch.no_grad():
        before = velocity(backbone, conditioning)
    add_adapter(
        backbone.denoiser, LoraSettings(4, 4.0, use_dora=True), targets=backbone.lora_presets["attention"], seed=0
    )
    with torch.no_grad():
        assert torch.equal(velocity(backbone, conditioning), before)
    found = gradients(backbone, conditioning)
    assert all(found[name].abs().max() > 0 for name in found if "lora_B" in name)


@pytest.mark.parametrize("name", ["flux_kontext"], indirect=True)
def test_ddp_takes_a_quantised_base(build: Build, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = with_adapter(build(quantization=kind), is_filled=True)
    conditioning = backbone.encode(batch_of(1))
    alone = gradients(backbone, conditioning)
    quantization.keep_from_broadcast(backbone.denoiser)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(backbone.denoiser)
        noise = torch.randn(conditioning.target.shape, generator=torch.Generator().manual_seed(1))
        backbone.denoiser.zero_grad()
        backbone.velocity(wrapped, noise, torch.tensor([0.7]), conditioning).square().mean().backward()
    finally:
        torch.distributed.destroy_process_group()
    shared = {n: p.grad for n, p in backbone.denoiser.named_parameters() if p.grad is not None}
    assert shared.keys() == alone.keys()
    assert all(torch.equal(shared[each], alone[each]) for each in alone)


@pytest.mark.parametrize("name", ["flux_kontext"], indirect=True)
def test_fingerprint_tells_quantised_bases_apart(build: Build) -> None:
    for package in set(PACKAGES.values()):
        pytest.importorskip(package)
    prints = {build(quantization=kind).fingerprint for kind in (None, *PACKAGES)}
    assert len(prints) == 1 + len(PACKAGES)


def test_broadcast_is_kept_for_a_base_that_is_not_quantised() -> None:
    backbone = with_adapter(EDITORS["flux_kontext"](), is_filled=False)
    quantization.keep_from_broadcast(backbone.denoiser)
    assert not hasattr(backbone.denoiser, "_ddp_params_and_buffers_to_ignore")


@pytest.mark.parametrize("name", EDITORS)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_is_refused_before_weights_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wide(name, tmp_path, monkeypatch)
    for module in (flux_pipeline, qwen_pipeline):
        monkeypatch.setattr(module, "read_pipeline", lambda *_: pytest.fail("weights were read"))
    for kind in PACKAGES:
        with pytest.raises(ValueError, match=r"backbone\.quantization needs a CUDA device, and torch sees none"):
            EDITORS[name](weights=str(tmp_path), quantization=kind)
    with pytest.raises(pytest.fail.Exception, match="weights were read"):
        EDITORS[name](weights=str(tmp_path), quantization=None)


def test_what_cannot_be_quantised_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_quantization(None, "random_tiny")
    with pytest.raises(ValueError, match=r"backbone\.quantization is 'nf4'; it must be null or one of bnb_nf4"):
        check_quantization("nf4", "toy")
    with pytest.raises(ValueError, match=r"bnb_nf4 was asked of backbone\.weights=random_tiny"):
        check_quantization("bnb_nf4", "random_tiny")
    monkeypatch.setattr(quantization, "quantization_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(quantization, "find_spec", lambda package: None)
    for kind, package in PACKAGES.items():
        with pytest.raises(ValueError, match=rf"{kind} needs {package}, which is not installed.*\[quantized\]"):
            check_quantization(kind, "toy")


def test_zero_3_is_refused_with_a_quantised_base_alone() -> None:
    for stage in range(3):
        check_sharding("bnb_nf4", stage)
    check_sharding(None, 3)
    with pytest.raises(ValueError, match=r"backbone\.quantization=bnb_nf4 does not work with DeepSpeed ZeRO-3"):
        check_sharding("bnb_nf4", 3)


def test_blocks_with_weights_of_torchao_are_not_compiled(tmp_path: Path) -> None:
    check_compiling("bnb_nf4", "inductor")
    check_compiling("torchao_int8", None)
    message = r"quantization=torchao_fp8 and backbone\.compile_blocks=inductor do not work together"
    with pytest.raises(ValueError, match=message):
        EDITORS["flux_kontext"](weights="toy", quantization="torchao_fp8", compile_blocks="inductor")
    asked = ["backbone.quantization=torchao_fp8", "backbone.compile_blocks=inductor"]
    with pytest.raises(ConfigError, match=message):
        check_backbone(compose_config(["experiment=demo", *asked]))


def test_a_run_is_refused_before_it_begins(tmp_path: Path) -> None:
    overrides = ["experiment=demo", f"output_root={tmp_path}", "backbone.quantization=bnb_nf4"]
    with pytest.raises(ConfigError, match=r"bnb_nf4 needs a CUDA device, but device=cpu was asked"):
        check_rules(compose_config([*overrides, "device=cpu"]))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"backbone\.quantization needs a CUDA device"):
            check(compose_config(overrides))
