"""How the repeated blocks of a denoiser run: which of them twice, and compiled or not."""

from collections.abc import Collection
from typing import Any, Literal

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


def blocks_of(denoiser: nn.Module) -> list[nn.Module]:
    """Returns the repeated blocks in the order they run."""
    return [block for name in BLOCK_LISTS for block in getattr(denoiser, name, ())]


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
