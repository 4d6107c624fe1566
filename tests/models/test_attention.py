"""Attention on kernels that the config names: those that were asked for run, and nobody else's change."""

from typing import Any

import pytest
import torch
from diffusers.models import attention_dispatch
from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn
from tests.support.memory_editors import EDITORS, Editor, batch_of, edit, gradients, relative_change, with_adapter
from torch import Tensor

from physedit.models import attention
from physedit.models.attention import ATTENTION, check_attention
from physedit.models.lora import without_adapter
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.rules import check_rules

# Relative to the largest value of a tensor. Seen: 6e-7; kernels sum in another order.
TOLERANCE = 1e-5


@pytest.fixture(params=EDITORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def chosen(backbone: Editor) -> set[Any]:
    """Returns what the processors of all attention of the denoiser were set to."""
    processors = {module.processor for module in backbone.denoiser.modules() if hasattr(module, "processor")}
    assert processors
    return {processor._attention_backend for processor in processors}


@pytest.mark.parametrize("kernels", ["native", "_native_math"])
def test_named_kernels_run_and_compute_the_same(name: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, named = (with_adapter(EDITORS[name](attention=each), is_filled=True) for each in (None, kernels))
    assert (chosen(plain), chosen(named)) == ({None}, {AttentionBackendName(kernels)})
    conditioning = plain.encode(batch_of(1, 2))
    expected, ran = gradients(plain, conditioning), spied(monkeypatch)
    found = gradients(named, conditioning)
    assert set(ran) == {kernels}
    assert expected.keys() == found.keys()
    largest = {each: float(value.abs().max()) for each, value in expected.items()}
    assert all(float((found[each] - expected[each]).abs().max()) <= TOLERANCE * largest[each] for each in expected)
    ran.clear()
    edited = [edit(backbone, batch_of(3).sources[0]) for backbone in (plain, named)]
    assert set(ran) == {"native", kernels}
    assert int((edited[0].int() - edited[1].int()).abs().max()) <= 1
    with without_adapter(named.denoiser):
        assert chosen(named) == {AttentionBackendName(kernels)}


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of kernels, in the order in which they run from now on."""
    ran: list[str] = []
    for each, function in attention_dispatch._AttentionBackendRegistry._backends.items():

        def noted(*args: Any, each: Any = each, function: Any = function, **kwargs: Any) -> Tensor:
            ran.append(AttentionBackendName(each).value)
            return function(*args, **kwargs)  # type: ignore[no-any-return]

        monkeypatch.setitem(attention_dispatch._AttentionBackendRegistry._backends, each, noted)
    return ran


def test_kernels_of_half_precision_run_on_the_cpu_in_bfloat16() -> None:
    plain, named = (
        with_adapter(EDITORS["flux_kontext"](attention=each, dtype="bfloat16"), is_filled=True)
        for each in (None, "_native_flash")
    )
    conditioning = plain.encode(batch_of(1))
    expected, found = gradients(plain, conditioning), gradients(named, conditioning)
    # On the CPU both are torch's flash kernel.
    assert all(torch.equal(expected[each], found[each]) for each in expected)


def test_kernels_of_one_editor_are_not_those_of_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    EDITORS[name](attention="_native_math")
    after = with_adapter(EDITORS[name](), is_filled=True)
    ran = spied(monkeypatch)
    gradients(after, after.encode(batch_of(1)))
    assert set(ran) == {"native"}


def test_kernels_belong_to_the_fingerprint_and_their_absence_does_not(name: str) -> None:
    prints = [EDITORS[name](attention=each).fingerprint for each in (None, "native", "_native_math")]
    assert len(set(prints)) == 3
    assert len({EDITORS[name](attention=each).encoding_key for each in (None, "native")}) == 1


FLOAT, HALF = "float32", "bfloat16"
REFUSED = {
    "near": (
        "_native_cudn",
        HALF,
        r"is '_native_cudn'; it must be null or one of native, .* Did you mean '_native_cudnn'",
    ),
    "far": ("quick", HALF, r"is 'quick'; it must be null or one of native, _native_cudnn, [a-z0-9_, ]*\.$"),
    "no word": (True, HALF, r"is 'True'; it must be null or one of"),
    "no gradient": ("sage", HALF, r"=sage has no backward pass .* Use null or one of native"),
    "no gradient either": ("_flash_3", HALF, r"=_flash_3 has no backward pass"),
    "dtype": ("_native_cudnn", FLOAT, r"takes bfloat16 alone, but backbone.dtype is float32\. .* native, _native_effi"),
    "no device": ("_native_cudnn", HALF, r"needs a CUDA device, and torch sees none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_kernels_that_cannot_train_here_are_refused_before_anything_is_loaded(
    case: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kernels, dtype, message = REFUSED[case]
    for refusing in (EDITORS[name], lambda **options: outlined(name, **options)):
        with pytest.raises(ValueError, match=message):
            refusing(attention=kernels, dtype=dtype, weights="random_tiny")


def outlined(name: str, **settings: Any) -> None:
    common = {"area_px": 64 * 64, "pipeline": "QwenImageEditPipeline", "max_text_tokens": 24}
    kind = type(EDITORS[name]())
    kind.outline({**common, **settings})


@pytest.mark.parametrize("kernels", [each for each, kind in ATTENTION.items() if not kind.with_mask])
def test_kernels_that_take_no_mask_are_refused_for_qwen(kernels: str) -> None:
    with pytest.raises(ValueError, match=r"cannot leave out the padding .* one of native, _native_cudnn, "):
        EDITORS["qwen_image_edit"](attention=kernels, dtype=HALF)
    with pytest.raises(ValueError, match="cannot leave out the padding"):
        outlined("qwen_image_edit", attention=kernels, dtype=HALF, weights="random_tiny")


@pytest.mark.parametrize("kernels", ["flash", "flash_hub", "_flash_3_hub", "xformers"])
def test_kernels_whose_package_is_absent_are_refused_with_its_name(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for flag in ("_CAN_USE_FLASH_ATTN", "_CAN_USE_XFORMERS_ATTN"):
        monkeypatch.setattr(attention_dispatch, flag, False)
    monkeypatch.setattr(attention_dispatch, "is_kernels_available", lambda: False)
    with pytest.raises(
        ValueError, match=rf"backbone\.attention={kernels}: .*install .* Or use backbone\.attention=null"
    ):
        check_attention(kernels, dtype=HALF, has_masks=False)


def test_every_name_is_one_of_diffusers_own() -> None:
    known = {each.value for each in AttentionBackendName}
    assert len(ATTENTION) == 9
    assert set(ATTENTION) | set(attention._WITHOUT_GRADIENT) <= known
    assert not set(ATTENTION) & set(attention._WITHOUT_GRADIENT)


@pytest.mark.parametrize("kernels", [each for each, kind in ATTENTION.items() if kind.on_cpu and kind.with_mask])
def test_kernels_that_take_a_mask_leave_out_padding_in_the_middle_of_a_row(kernels: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 6, 2, 8, generator=generator) for _ in range(3))  # [B, N, A, D]
    is_token = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    found = dispatch_attention_fn(query, key, value, attn_mask=is_token[:, None, None, :], backend=kernels)
    kept = is_token[0]
    expected = dispatch_attention_fn(query[:1], key[:1, kept], value[:1, kept], backend="_native_math")
    assert relative_change(expected, found[:1]) < TOLERANCE


def test_kernels_of_a_cuda_device_are_refused_for_a_run_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match=r"attention=_native_cudnn needs a CUDA device, but device=cpu was asked"):
        check_rules(compose_config(["experiment=demo", "backbone.attention=_native_cudnn", "device=cpu"]))
    check_rules(compose_config(["experiment=demo", "backbone.attention=_native_math", "device=cpu"]))
