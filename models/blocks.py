"""How the repeated blocks of a denoiser run: which of them twice, and compiled or not."""

import os
import shutil
import sysconfig
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CompileBackend = Literal["inductor", "aot_eager"]
"""A backend of torch.compile: the one that generates code, or one that only traces, to tell their faults apart."""
BLOCK_LISTS = ("transformer_blocks", "single_transformer_blocks")
"""The denoisers' lists of blocks, in the order they run."""
_COMPILED_VARIANTS = 64
"""torch's own limit of 8, beyond which blocks run uncompiled, is passed by training, evaluation with and without the
adapter, each at two sizes and more, of blocks with unlike adapters."""


def checked_checkpointing(value: object) -> int:
    """Returns n where the first of every n blocks is recomputed, and 0 where none is.

    Args:
        value: ``backbone.gradient_checkpointing``: true for all blocks, false for none, or n.

    Raises:
        ValueError: it is neither true, false nor a whole number of at least 1.
    """
    if not isinstance(value, int) or (value < 1 and value is not False):
        raise ValueError(
            f"backbone.gradient_checkpointing is {value}; it must be true (every block is recomputed), false (none), "
            "or a whole number of at least 1: 2 recomputes every second block, 3 every third."
        )
    return int(value)


def check_backend(backend: object) -> None:
    """Verifies that blocks can be compiled with this backend on this machine, without compiling anything.

    Args:
        backend: ``backbone.compile_blocks``; None compiles nothing, and only ``inductor`` needs more than torch.

    Raises:
        ValueError: no such backend; no compiler of C++ or, with a CUDA device, no Triton or no compiler of C for it; or
            no headers of Python.

    Source: triton/runtime/build.py for the compiler that Triton takes; the code for either device includes Python.h.
    """
    if backend is not None and backend not in get_args(CompileBackend):
        raise ValueError(
            f"backbone.compile_blocks is '{backend}'; it must be null or one of {', '.join(get_args(CompileBackend))}."
        )
    if backend != "inductor":
        return
    missing = _missing_for_cuda() if torch.cuda.is_available() else _missing_for_cpu()
    headers = Path(sysconfig.get_path("include"))
    if missing is None and not (headers / "Python.h").exists():
        missing = f"the headers of Python ({headers / 'Python.h'}; in Debian's python3-dev)"
    if missing is not None:
        raise ValueError(
            f"backbone.compile_blocks=inductor generates code and needs {missing}, which this machine lacks. Install "
            "it, or use backbone.compile_blocks=null."
        )


def blocks_of(denoiser: nn.Module) -> list[nn.Module]:
    """Returns the repeated blocks in the order they run."""
    return [block for name in BLOCK_LISTS for block in getattr(denoiser, name, ())]


def recompute_every(denoiser: nn.Module, share: bool | int) -> None:
    """Does ``recompute`` with the first of every so many blocks, as ``checked_checkpointing`` counts them."""
    if every := checked_checkpointing(share):
        recompute(denoiser, blocks_of(denoiser)[::every])


def recompute(denoiser: nn.Module, blocks: Collection[nn.Module]) -> None:
    """Has the backward pass compute these blocks again from what enters them; the others keep what they need for it.

    Args:
        denoiser: of diffusers.
        blocks: some of ``blocks_of``.
    """
    denoiser.enable_gradient_checkpointing(_Recomputing(blocks))  # type: ignore[operator]


def compile_blocks(denoiser: nn.Module, backend: CompileBackend) -> None:
    """Has each block be compiled at its first run, with the adapter that it has then."""
    denoiser.compile_repeated_blocks(backend=backend, recompile_limit=_COMPILED_VARIANTS)  # type: ignore[operator]


def _missing_for_cuda() -> str | None:
    if find_spec("triton") is None:
        return "the package triton"
    compilers = (os.environ["CC"],) if "CC" in os.environ else ("gcc", "clang")
    return None if any(map(shutil.which, compilers)) else f"a C compiler ({' or '.join(compilers)})"


def _missing_for_cpu() -> str | None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return f"a C++ compiler ({os.environ.get('CXX', 'g++')})"
    return None


class _Recomputing:
    """What diffusers calls in place of a block while gradients are made."""

    def __init__(self, blocks: Collection[nn.Module]) -> None:
        self._blocks = frozenset(blocks)

    def __call__(self, block: nn.Module, *inputs: Any) -> Any:  # what a block takes and returns is its own
        """Calls ``block``, whose inner values the backward pass computes again if it is one of those.

        The re-entrant form gives no gradient to adapters in a frozen base: their block's inputs need none.
        """
        if block not in self._blocks:
            return block(*inputs)
        return checkpoint(block, *inputs, use_reentrant=False)
