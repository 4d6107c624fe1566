"""A bounded store for the results of a pure function."""

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor


class TensorMemo:
    """Keeps tensors by key up to a number of bytes; the least recently used go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Returns what is kept for ``key``, or makes and keeps it. The tensors are shared: never write to them."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        # Copies: a view would hold on to a larger storage, or to a graph.
        made = tuple(value.detach().clone() for value in make())
        self._kept[key] = made
        self._used_bytes += _size_bytes(made)
        while self._used_bytes > self._limit_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._used_bytes -= _size_bytes(dropped)
        return made

    def clear(self) -> None:
        """Forgets everything."""
        self._kept.clear()
        self._used_bytes = 0


def _size_bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)
