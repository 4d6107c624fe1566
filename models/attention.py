"""Which kernels a denoiser's attention runs on, chosen by name through diffusers' own dispatcher."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Kernels:
    """What attention kernels take.

    Attributes:
        on_cpu: they run without a CUDA device.
        in_float32: they take float32.
        with_mask: they leave out the padding of a batch, wherever in a row it lies.
    """

    on_cpu: bool = False
    in_float32: bool = False
    with_mask: bool = False


ATTENTION: Mapping[str, Kernels] = {
    "native": Kernels(on_cpu=True, in_float32=True, with_mask=True),
    "_native_cudnn": Kernels(with_mask=True),
    "_native_efficient": Kernels(in_float32=True, with_mask=True),
    "_native_flash": Kernels(on_cpu=True),
    "_native_math": Kernels(on_cpu=True, in_float32=True, with_mask=True),
    "flash": Kernels(),
    "flash_hub": Kernels(),
    "_flash_3_hub": Kernels(),
    "xformers": Kernels(in_float32=True),
}
"""Those that train. Source: models/attention_dispatch.py, diffusers, which names them so."""
_WITHOUT_GRADIENT = (
    "sage", "sage_hub", "sage_blackwell_hub", "sage_varlen", "_sage_qk_int8_pv_fp8_cuda",
    "_sage_qk_int8_pv_fp8_cuda_sm90", "_sage_qk_int8_pv_fp16_cuda", "_sage_qk_int8_pv_fp16_triton", "_flash_3",
    "_flash_varlen_3",
)  # fmt: skip
"""Of diffusers' others: SageAttention quantises queries and keys for inference, and diffusers calls FlashAttention-3,
where it is not from the hub, as an operator without a backward pass."""
_HALF = "bfloat16"


def check_attention(name: object, *, dtype: str, has_masks: bool) -> None:
    """Verifies that attention can run on these kernels on this machine, without loading anything of the editor.

    Args:
        name: one of ``ATTENTION``, or None for diffusers' own choice.
        dtype: of the denoiser.
        has_masks: the denoiser is told of padding, as that of Qwen-Image-Edit is.

    Raises:
        ValueError: no such kernels, or none that train, for this dtype, these masks or this machine.
    """
    if name is None:
        return
    kernels = ATTENTION.get(name) if isinstance(name, str) else None
    asked = f"backbone.attention={name}"
    if kernels is None:
        raise ValueError(_unknown(name, has_masks=has_masks))
    instead = f"Use backbone.attention=null or one of {', '.join(_fitting(dtype, has_masks=has_masks))}."
    if has_masks and not kernels.with_mask:
        raise ValueError(
            f"{asked} cannot leave out the padding of a batch, which lies between the text and the picture of a "
            f"Qwen-Image-Edit. {instead}"
        )
    if dtype != _HALF and not kernels.in_float32:
        raise ValueError(f"{asked} takes {_HALF} alone, but backbone.dtype is {dtype}. {instead}")
    if needs_cuda(name) and not torch.cuda.is_available():
        raise ValueError(
            f"{asked} needs a CUDA device, and torch sees none. Run on a machine with a GPU and a CUDA build of torch, "
            "or use backbone.attention=null, native or _native_math."
        )
    _check_package(str(name))


def needs_cuda(name: object) -> bool:
    """True if these kernels are known and run on a CUDA device alone. Pure."""
    return isinstance(name, str) and name in ATTENTION and not ATTENTION[name].on_cpu


def set_attention(denoiser: nn.Module, name: str) -> None:
    """Has the denoiser's attention, and that of no other model, run on these kernels.

    Args:
        denoiser: of diffusers.
        name: one of ``ATTENTION`` that was checked; those that end in ``_hub`` are downloaded.
    """
    from diffusers import attention_backend

    # Setting them makes them the choice of every model of the process that has none of its own.
    with attention_backend(name):
        denoiser.set_attention_backend(name)  # type: ignore[operator]


def _fitting(dtype: str, *, has_masks: bool) -> list[str]:
    return [
        name
        for name, kernels in ATTENTION.items()
        if (kernels.in_float32 or dtype == _HALF) and (kernels.with_mask or not has_masks)
    ]


def _unknown(name: object, *, has_masks: bool) -> str:
    allowed = f"null or one of {', '.join(_fitting(_HALF, has_masks=has_masks))}"
    if name in _WITHOUT_GRADIENT:
        return (
            f"backbone.attention={name} has no backward pass in diffusers, so the adapter would learn nothing through "
            f"it. Use {allowed}."
        )
    near = get_close_matches(str(name), ATTENTION, n=1)
    return f"backbone.attention is '{name}'; it must be {allowed}." + (f" Did you mean '{near[0]}'?" if near else "")


def _check_package(name: str) -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName, _check_attention_backend_requirements

    try:
        _check_attention_backend_requirements(AttentionBackendName(name))
    except RuntimeError as error:
        raise ValueError(f"backbone.attention={name}: {error} Or use backbone.attention=null.") from error
