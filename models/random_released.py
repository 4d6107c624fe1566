"""Pipelines of the released sizes with seeded random weights, built on the GPU: to measure without a download.

What they draw means nothing.

Transformer, VAE and text encoders have the released architectures. Tokenizers, scheduler and picture processor are
those of ``random_tiny``: its tokenizers read one letter a token, so an instruction has more tokens than it would have.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from physedit.models.estimating.released import flux_parts, qwen_parts
from physedit.models.weights import RANDOM_RELEASED

_SEED = 0


def released_device(weights: str) -> torch.device:
    """Returns the device that weights are built on: this process's own.

    Args:
        weights: ``random_released``, for the message.

    Raises:
        ValueError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ValueError(
            f"backbone.weights={weights} makes 12 or 20 billion random weights on the GPU, and torch sees no CUDA "
            "device. Run on a machine with a GPU and a CUDA build of torch, or use backbone.weights=random_tiny."
        )
    return torch.device("cuda", torch.cuda.current_device())


def check_random(weights: str) -> None:
    """Verifies that random weights of the released size, if they are asked for, can be built here.

    Raises:
        ValueError: see ``released_device``.
    """
    if weights == RANDOM_RELEASED:
        released_device(weights)


def build_random_flux(dtype: torch.dtype, device: torch.device, but: Collection[str] = ()) -> Any:
    """Returns a FluxKontextPipeline of the released size.

    Args:
        dtype: of every weight, which never has another.
        device: where the weights are made, and where the transformer stays; the rest is moved to the CPU.
        but: names of parts that are left out.
    """
    from physedit.models.random_tiny import build_random_tiny

    parts = _built(lambda: flux_parts(but), dtype, device)
    return _dressed(build_random_tiny(_SEED), parts, but)


def build_random_qwen(pipeline_class: Any, dtype: torch.dtype, device: torch.device, but: Collection[str] = ()) -> Any:
    """Returns a pipeline of the released size.

    Args:
        pipeline_class: QwenImageEditPipeline or QwenImageEditPlusPipeline.
        dtype: of every weight, which never has another.
        device: where the weights are made, and where the transformer stays; the rest is moved to the CPU.
        but: names of parts that are left out.
    """
    from physedit.models.random_tiny_qwen import build_random_tiny_qwen

    is_plus = pipeline_class.__name__ == "QwenImageEditPlusPipeline"
    tiny: Any = build_random_tiny_qwen(pipeline_class, _SEED, zero_cond_t=is_plus)
    config = tiny.text_encoder.config
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    rows = {name: int(getattr(config, name)) for name in names}
    parts = _built(lambda: qwen_parts(rows, but, zero_cond_t=is_plus), dtype, device)
    return _dressed(tiny, parts, but)


def _built(build: Callable[[], dict[str, nn.Module]], dtype: torch.dtype, device: torch.device) -> dict[str, nn.Module]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.device(device), _default_dtype(dtype):
        torch.manual_seed(_SEED)
        parts = build()
    # Buffers that a class makes in float32 whatever the default is; and encoders where ``PipelineParts`` expects them.
    cpu = torch.device("cpu")
    return {name: nn.Module.to(part, device if name == "transformer" else cpu, dtype) for name, part in parts.items()}


def _dressed(tiny: Any, parts: dict[str, nn.Module], but: Collection[str]) -> Any:
    """Returns a pipeline with the tiny one's tokenizers and scheduler around other modules."""
    return type(tiny)(**{**tiny.components, **dict.fromkeys(but), **parts})


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
