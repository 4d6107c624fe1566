"""A bounded store for the results of a pure function, and a folder that holds what it has no room for."""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor


class TensorShelf:
    """Tensors by key in files of a folder, which processes may share and later ones find."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Looks at nothing yet.

        Args:
            folder: made with the first entry; what decides the values and is not in the keys must be in its name.
            device: where found tensors are put.
        """
        self._folder, self._device = folder, device

    def find(self, key: str) -> tuple[Tensor, ...] | None:
        """Returns what was put under ``key``; None if there is nothing, or a file that cannot be read whole."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            kept = load_file(self._file(key))
        except (FileNotFoundError, SafetensorError):
            return None
        return tuple(kept[str(number)].to(self._device) for number in range(len(kept)))

    def put(self, key: str, tensors: tuple[Tensor, ...]) -> None:
        """Writes an entry, whole or not at all.

        Raises:
            OSError: the disk is full, for example.
        """
        from safetensors.torch import save

        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
        try:
            part.write_bytes(save({str(n): value.detach().cpu().contiguous() for n, value in enumerate(tensors)}))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return self._folder / name[:2] / f"{name}.safetensors"


class TensorMemo:
    """Keeps tensors by key up to a number of bytes; the least recently used go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()
        self._shelf: TensorShelf | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Returns what is kept for ``key``, or makes and keeps it. The tensors are shared: never write to them."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = None if self._shelf is None else self._shelf.find(key)
        # Copies: a view would hold on to a larger storage, or to a graph.
        made = tuple(value.detach().clone() for value in make()) if found is None else found
        if self._shelf is not None and found is None:
            self._shelf.put(key, made)
        self._kept[key] = made
        self._used_bytes += _size_bytes(made)
        while self._used_bytes > self._limit_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._used_bytes -= _size_bytes(dropped)
        return made

    @contextmanager
    def shelved(self, shelf: TensorShelf) -> Iterator[None]:
        """Within the context what is made is put on ``shelf`` too, and what is not kept is looked for there."""
        before, self._shelf = self._shelf, shelf
        try:
            yield
        finally:
            self._shelf = before

    def clear(self) -> None:
        """Forgets everything; a shelf keeps what it has."""
        self._kept.clear()
        self._used_bytes = 0


def _size_bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)
