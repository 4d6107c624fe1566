"""A store of encoded rows: tensors by key, written once and read memory-mapped.

A shard is a pair of files that one process appends to. ``NAME.data`` holds entries, each laid out as a safetensors
file; ``NAME.index`` holds a record for each entry (key, place, length, checksum), written after the entry. A process
that is killed leaves an entry without a record, or part of a record, which nobody reads. No file is ever changed:
several processes may write at once, and an entry that was damaged since is written anew in another shard.
"""

import hashlib
import json
import os
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 16
SHARD_BYTES = 2**32
"""Ours: few enough files for a large set, and small enough ones to copy."""
_DATA, _INDEX = ".data", ".index"
_RECORD = np.dtype([("key", f"S{KEY_BYTES}"), ("start", "<u8"), ("length", "<u8"), ("checksum", "<u4")])
# Source: the format's own names, huggingface/safetensors, README.
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_HEADER_LENGTH_BYTES = 8


class EntryDamaged(ValueError):
    """The bytes of an entry are not those that were written."""


@dataclass(frozen=True, slots=True)
class _Place:
    shard: int
    start: int
    length: int
    checksum: int


def entry_key(*parts: str) -> bytes:
    """Returns the key of ``KEY_BYTES`` that belongs to these parts: no other parts have it."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=KEY_BYTES).digest()


class EncodedStore:
    """Reads entries; picklable, and each process maps the files for itself.

    It knows the entries that were there when it was opened.
    """

    def __init__(self, folder: Path) -> None:
        """Reads the index files of ``folder``, which need not exist yet."""
        self._files = sorted(folder.glob(f"*{_DATA}"))
        parts = [_records(file) for file in self._files]
        records = np.concatenate(parts) if parts else np.zeros(0, _RECORD)
        shards = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.argsort(records["key"], kind="stable")
        self._records: NDArray[np.void] = records[order]
        self._keys: NDArray[np.bytes_] = np.ascontiguousarray(self._records["key"])
        self._shards = shards[order]
        self._maps: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(np.unique(self._keys))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_maps": {}}

    def holds(self, key: bytes) -> bool:
        """True if an entry of ``key`` is there, whole or damaged."""
        return bool(self._places(key))

    def is_intact(self, key: bytes) -> bool:
        """True if an entry of ``key`` is there as it was written; reads all of it."""
        return any(self._is_intact(key, place) for place in self._places(key))

    def num_lacking(self, keys: NDArray[np.bytes_]) -> int:
        """Returns how many of ``keys`` have no entry."""
        return int((~np.isin(keys, self._keys)).sum())

    def num_bytes(self, key: bytes) -> int:
        """Returns the length of the entry of ``key``, 0 if there is none."""
        return max((place.length for place in self._places(key)), default=0)

    def read(self, key: bytes) -> dict[str, Tensor]:
        """Returns the tensors of an entry, each with memory of its own.

        Raises:
            KeyError: there is no such entry.
            EntryDamaged: there is, but not as it was written.
        """
        places = self._places(key)
        for place in places:
            if self._is_intact(key, place):
                return _tensors(self._bytes(place))
        if not places:
            raise KeyError(f"No entry {key.hex()} is in the encoded cache.")
        file = self._files[places[0].shard]
        raise EntryDamaged(
            f"Entry {key.hex()} of the encoded cache is damaged (byte {places[0].start} of {file}). `physedit encode` "
            "with the same settings writes it anew."
        )

    def _places(self, key: bytes) -> list[_Place]:
        first, last = (int(np.searchsorted(self._keys, np.bytes_(key), side=side)) for side in ("left", "right"))
        return [
            _Place(int(self._shards[number]), *map(int, self._records[number].item()[1:]))
            for number in range(first, last)
        ]

    def _is_intact(self, key: bytes, place: _Place) -> bool:
        content = self._bytes(place)
        return len(content) == place.length and _checksum(key, content.data) == place.checksum

    def _bytes(self, place: _Place) -> NDArray[np.uint8]:
        """Returns a view of the mapped file; shorter than the entry if the file was cut."""
        if place.shard not in self._maps:
            file = self._files[place.shard]
            is_empty = file.stat().st_size == 0  # which cannot be mapped
            self._maps[place.shard] = np.zeros(0, np.uint8) if is_empty else np.memmap(file, np.uint8, "r")
        return self._maps[place.shard][place.start : place.start + place.length]


class StoreWriter:
    """Appends entries to shards of its own; a context manager that closes them."""

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        """Makes ``folder``; files are made with the first entry.

        Args:
            folder: of the store.
            shard_bytes: a shard that has grown beyond it is followed by another.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._data: BinaryIO | None = None
        self._index: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, key: bytes, tensors: Mapping[str, Tensor]) -> int:
        """Appends an entry and returns its length in bytes.

        Raises:
            OSError: the disk is full, for example; entries before it stay.
        """
        from safetensors.torch import save

        content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        if self._data is None or self._data.tell() >= self._shard_bytes:
            self._begin_shard()
        assert self._data is not None
        assert self._index is not None
        record = np.zeros((), _RECORD)
        record["key"], record["start"], record["length"] = key, self._data.tell(), len(content)
        record["checksum"] = _checksum(key, content)
        self._data.write(content)
        self._data.flush()
        self._index.write(record.tobytes())
        self._index.flush()
        return len(content)

    def close(self) -> None:
        """Brings what was added to the disk."""
        for stream in (self._data, self._index):
            if stream is not None:
                os.fsync(stream.fileno())
                stream.close()
        self._data = self._index = None

    def _begin_shard(self) -> None:
        self.close()
        name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        self._data = (self._folder / f"{name}{_DATA}").open("xb")
        self._index = (self._folder / f"{name}{_INDEX}").open("xb")


def _records(data: Path) -> NDArray[np.void]:
    """Returns the records of a shard; part of a record at the end is left out."""
    index = data.with_suffix(_INDEX)
    content = index.read_bytes() if index.exists() else b""
    return np.frombuffer(content, _RECORD, count=len(content) // _RECORD.itemsize)


def _checksum(key: bytes, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(key))


def _tensors(content: NDArray[np.uint8]) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file, copied from ``content``."""
    header_end = _HEADER_LENGTH_BYTES + int(content[:_HEADER_LENGTH_BYTES].view("<u8")[0])
    header = json.loads(content[_HEADER_LENGTH_BYTES:header_end].tobytes())
    tensors: dict[str, Tensor] = {}
    for name, told in header.items():
        first, last = told["data_offsets"]
        tensors[name] = torch.empty(told["shape"], dtype=_DTYPES[told["dtype"]])
        tensors[name].reshape(-1).view(torch.uint8).numpy()[:] = content[header_end + first : header_end + last]
    return tensors
