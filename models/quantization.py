"""Bases whose linear layers are stored in 4 or 8 bits, by bitsandbytes or torchao; adapters stay float32."""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from physedit.models.weights import RANDOM_RELEASED, RANDOM_TINY, split_revision

Quantization = Literal["bnb_nf4", "bnb_int8", "torchao_int8", "torchao_fp8"]
"""How the linear layers of the transformer are stored: blocks of 64 in 4-bit NormalFloat whose scales are quantised
too (bnb_nf4), LLM.int8 with outliers in 16 bits (bnb_int8), or rows of int8 or fp8 that are widened for each product.

Source: QLoRA arXiv 2305.14314; LLM.int8 arXiv 2208.07339; torchao Int8WeightOnlyConfig, Float8WeightOnlyConfig.
"""
PACKAGES: Mapping[str, str] = {
    "bnb_nf4": "bitsandbytes",
    "bnb_int8": "bitsandbytes",
    "torchao_int8": "torchao",
    "torchao_fp8": "torchao",
}
_TRANSFORMER = "transformer"


def check_quantization(quantization: str | None, weights: str) -> None:
    """Verifies that the base can be quantised on this machine, without reading weights.

    Raises:
        ValueError: no such quantisation, weights that are not read from files, no CUDA device, or a package that is
            not installed.
    """
    if quantization is None:
        return
    if quantization not in get_args(Quantization):
        raise ValueError(
            f"backbone.quantization is '{quantization}'; it must be null or one of {', '.join(get_args(Quantization))}."
        )
    if weights in (RANDOM_TINY, RANDOM_RELEASED):
        raise ValueError(
            f"backbone.quantization={quantization} was asked of backbone.weights={weights}, but weights are "
            "quantised while they are read from files. Use backbone.quantization=null, or the folder of a pipeline."
        )
    quantization_device()
    package = PACKAGES[quantization]
    if find_spec(package) is None:
        raise ValueError(
            f"backbone.quantization={quantization} needs {package}, which is not installed. Install it with "
            f"`pip install -e '.[quantized]'`, or use backbone.quantization=null."
        )


def check_sharding(quantization: str | None, zero_stage: int) -> None:
    """Verifies that DeepSpeed leaves the base whole if it is quantised. Pure.

    Args:
        quantization: of the base; None for none.
        zero_stage: of DeepSpeed's ZeRO; 0 without it.

    Raises:
        ValueError: ZeRO-3, which cuts every weight into a piece a process.
    """
    if quantization is not None and zero_stage == 3:
        raise ValueError(
            f"backbone.quantization={quantization} does not work with DeepSpeed ZeRO-3, which cuts the frozen base "
            "into a piece a process: packed weights and their scales cannot be cut and gathered again. Launch with "
            "ZeRO-2 or DDP, where each process holds the whole quantised base, or use backbone.quantization=null."
        )


def check_compiling(quantization: str | None, backend: str | None) -> None:
    """Verifies that blocks whose weights are so quantised can be compiled. Pure.

    Args:
        quantization: of the base; None for none.
        backend: that the blocks are to be compiled with; None compiles nothing.

    Raises:
        ValueError: weights of torchao, which the tracer of every backend refuses where a block returns an input.
    """
    if quantization is not None and backend is not None and PACKAGES.get(quantization) == "torchao":
        raise ValueError(
            f"backbone.quantization={quantization} and backbone.compile_blocks={backend} do not work together: torch "
            "cannot trace these blocks with torchao's weights (tensor subclasses with outputs that alias). Use "
            "backbone.compile_blocks=null, or backbone.quantization=bnb_nf4 or bnb_int8, which can be compiled."
        )


def quantization_device() -> torch.device:
    """Returns the device that weights are quantised on as they are read: this process's own.

    Raises:
        ValueError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ValueError(
            "backbone.quantization needs a CUDA device, and torch sees none: the base is quantised on the device as it "
            "is read. Run on a machine with a GPU and a CUDA build of torch, or use backbone.quantization=null."
        )
    return torch.device("cuda", torch.cuda.current_device())


def read_quantized_transformer(
    weights: Path | str, class_name: str, dtype: torch.dtype, quantization: Quantization
) -> nn.Module:
    """Returns the transformer of a stored pipeline on ``quantization_device``, layer by layer quantised as it is read.

    Args:
        weights: a pipeline folder, or a hub id with ``@revision``.
        class_name: of the transformer, in diffusers.
        dtype: of what is not quantised, and of every product.
        quantization: of every linear layer's weight.

    Raises:
        ValueError: there is no CUDA device.
        RuntimeError: no layer came out quantised.
    """
    import diffusers

    device = quantization_device()
    source, revision = (str(weights), None) if isinstance(weights, Path) else split_revision(weights)
    transformer: nn.Module = getattr(diffusers, class_name).from_pretrained(
        source,
        subfolder=_TRANSFORMER,
        revision=revision,
        torch_dtype=dtype,
        quantization_config=_diffusers_config(quantization, dtype),
        device_map=_device_map(quantization, device),
    )
    # diffusers leaves layers as they are, without a word, where it holds that they will be offloaded.
    if not num_quantized(transformer):
        raise RuntimeError(f"backbone.quantization={quantization} left every layer of the {class_name} as it was.")
    return transformer


def num_quantized(transformer: nn.Module) -> int:
    """Returns how many linear layers are stored in fewer bits."""
    return sum(isinstance(module, nn.Linear) and _is_quantized(module.weight) for module in transformer.modules())


def keep_from_broadcast(denoiser: nn.Module) -> None:
    """Has DDP leave a quantised base alone; called on every rank once the adapter is there, before DDP wraps it.

    Every rank has read the same files, and packed weights are not made to be flattened and sent.
    """
    if num_quantized(denoiser):
        frozen = [name for name, parameter in denoiser.named_parameters() if not parameter.requires_grad]
        wrapper: Any = nn.parallel.DistributedDataParallel  # its method has no types
        wrapper._set_params_and_buffers_to_ignore_for_model(denoiser, frozen)


def _is_quantized(weight: torch.Tensor) -> bool:
    return (
        type(weight.data).__module__.startswith("torchao.") or hasattr(weight, "quant_state") or hasattr(weight, "SCB")
    )


def _diffusers_config(quantization: Quantization, dtype: torch.dtype) -> object:
    from diffusers import BitsAndBytesConfig, TorchAoConfig

    if quantization == "bnb_nf4":
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    if quantization == "bnb_int8":
        # It says of every layer, in every pass, that its inputs are cast to float16.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig() if quantization == "torchao_int8" else Float8WeightOnlyConfig())


def _device_map(quantization: Quantization, device: torch.device) -> Mapping[str, torch.device] | None:
    """Returns where diffusers puts the layers; to torchao's part of it the CPU by name means offloaded."""
    return None if device.type == "cpu" and PACKAGES[quantization] == "torchao" else {"": device}
