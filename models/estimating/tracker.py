"""Counting the bytes that live, and the arithmetic that is done, while code runs on tensors without storage.

Shape legend: B batch, A heads, N queries, M keys, D head width.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_FORWARD_PRODUCTS = 2
_BACKWARD_PRODUCTS = 5
"""Matrix products of fused attention. Source: FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the context counts the bytes of storages that operators make, until they are freed, and multiplications.

    What lives before the context must be made known, or counts when an operator returns it. What an operator takes
    inside, such as a workspace of cuDNN, is not seen.

    Attributes:
        live: bytes now.
        timeline: ``live`` after every operator.
        flops: floating point operations of matrix products, convolutions and attention, a sum and a product being two.
        slow_flops: those of them in float32, which tensor cores do not do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.timeline: list[int] = []
        self.flops = 0
        self.slow_flops = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Never counts these tensors' storages."""
        for tensor in tensors:
            self._take(tensor.untyped_storage(), 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # torch's own signature
        """Runs the operator and takes in what it made."""
        del types
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, list | tuple) else (result,):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                self._take(storage, storage.nbytes())
        self.timeline.append(self.live)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            flops = int(count(*args, **(kwargs or {}), out_val=result))
            self.flops += flops
            self.slow_flops += flops if args[0].dtype == torch.float32 else 0
        return result

    def _take(self, storage: Any, num_bytes: int) -> None:
        key = id(storage)
        if key not in self._known:
            self._known[key] = (weakref.ref(storage, lambda _: self._lose(key)), num_bytes)
            self.live += num_bytes

    def _lose(self, key: int) -> None:
        self.live -= self._known.pop(key)[1]


@contextmanager
def fused_attention(counter: LiveBytes) -> Iterator[None]:
    """Within the context attention keeps what fused kernels keep; its result holds no values.

    On the meta device torch takes attention apart and keeps the N x M matrix of probabilities, which no fused kernel
    does: those keep queries, keys, values, result and the logarithm of each row's sum. It is changed for the whole
    process.

    Source: FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2.
    """

    def attention(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        result: Tensor = _Attention.apply(query, key, value, counter)  # type: ignore[no-untyped-call]
        return result

    with patch.object(F, "scaled_dot_product_attention", attention):
        yield


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, counter: LiveBytes) -> Tensor:
        # Fused kernels lay their result out as [B, N, A, D].
        shape = (*query.shape[:-1], value.shape[-1])
        result = torch.empty(shape, dtype=query.dtype, device=query.device)
        if len(shape) == 4:
            result = torch.empty_like(result.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        sums = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)  # [B, A, N]
        ctx.save_for_backward(query, key, value, result, sums)
        ctx.counter = counter
        counter.flops += _FORWARD_PRODUCTS * _product(query, key)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        del gradients
        query, key, value, *_ = ctx.saved_tensors
        ctx.counter.flops += _BACKWARD_PRODUCTS * _product(query, key)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def _product(query: Tensor, key: Tensor) -> int:
    """Returns the operations of ``[B, A, N, D] x [B, A, D, M]``."""
    return 2 * query.numel() * key.shape[-2]
