"""What the encoded store gives back, and what it makes of files that were cut, changed or left by a killed process."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from physedit.data_loaders.encoded import KeyRule
from physedit.data_loaders.encoded_store import EncodedStore, EntryDamaged, StoreWriter, entry_key
from physedit.data_loaders.sample import Origin, PromptLevel, StoredPair

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip


def entry(number: int) -> dict[str, Tensor]:
    return {"states": torch.full((number + 1, 3), number, dtype=torch.bfloat16), "shift": torch.tensor(number / 7)}


def write(folder: Path, *numbers: int) -> None:
    with StoreWriter(folder) as writer:
        for number in numbers:
            writer.add(entry_key(str(number)), entry(number))


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        value.dtype == second[name].dtype and torch.equal(value, second[name]) for name, value in first.items()
    )


def data_file(folder: Path) -> Path:
    (file,) = folder.glob("*.data")
    return file


def test_entry_comes_back_with_every_dtype_shape_and_bit(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.tensor([[0, 1], [1, 0]]).to(dtype) for dtype in DTYPES}
    tensors |= {"none": torch.zeros(0, 4), "scalar": torch.tensor(0.1, dtype=torch.float64)}
    tensors["view"] = torch.arange(20.0).reshape(4, 5).T[1:3]
    with StoreWriter(tmp_path) as writer:
        writer.add(entry_key("a"), tensors)
    assert equal(EncodedStore(tmp_path).read(entry_key("a")), {k: v.contiguous() for k, v in tensors.items()})


def test_stored_tensors_hold_only_their_own_bytes(tmp_path: Path) -> None:
    large = torch.zeros(1000, 1000)
    with StoreWriter(tmp_path) as writer:
        length = writer.add(entry_key("a"), {"view": large[:2, :3]})
    assert data_file(tmp_path).stat().st_size == length < 200
    (value,) = EncodedStore(tmp_path).read(entry_key("a")).values()
    assert value.untyped_storage().nbytes() == 2 * 3 * 4
    value.fill_(1.0)  # a copy: the file stays as it is
    assert not EncodedStore(tmp_path).read(entry_key("a"))["view"].any()


def test_entry_in_a_shard_is_a_safetensors_file(tmp_path: Path) -> None:
    write(tmp_path, 4)
    assert equal(load(data_file(tmp_path).read_bytes()), entry(4))


def test_shards_of_several_processes_are_one_store(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    write(tmp_path, 2, 1)
    store = EncodedStore(tmp_path)
    assert len(store) == 3
    assert all(equal(store.read(entry_key(str(number))), entry(number)) for number in range(3))
    assert equal(pickle.loads(pickle.dumps(store)).read(entry_key("2")), entry(2))


def test_shard_that_is_large_is_followed_by_another(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, shard_bytes=1) as writer:
        for number in range(3):
            writer.add(entry_key(str(number)), entry(number))
    assert len(list(tmp_path.glob("*.data"))) == len(list(tmp_path.glob("*.index"))) == 3
    assert EncodedStore(tmp_path).is_intact(entry_key("2"))


def test_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    store = EncodedStore(tmp_path / "none")
    assert len(store) == 0
    assert not store.is_intact(entry_key("0"))
    with pytest.raises(KeyError, match="No entry"):
        store.read(entry_key("0"))


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def cut(file: Path, place: int) -> None:
    file.write_bytes(file.read_bytes()[:place])


@pytest.mark.parametrize("harm", [flip, cut])
def test_damage_is_found_in_each_byte_of_an_entry_and_touches_no_other(
    harm: Callable[[Path, int], None], tmp_path: Path
) -> None:
    write(tmp_path, 0, 1)
    file = data_file(tmp_path)
    whole, first_length = file.read_bytes(), EncodedStore(tmp_path).num_bytes(entry_key("0"))
    for place in range(first_length, len(whole), 7):
        file.write_bytes(whole)
        harm(file, place)
        store = EncodedStore(tmp_path)
        assert equal(store.read(entry_key("0")), entry(0))
        assert store.holds(entry_key("1"))
        assert not store.is_intact(entry_key("1"))
        with pytest.raises(EntryDamaged, match=r"damaged \(byte .*physedit encode"):
            store.read(entry_key("1"))


def test_entry_written_anew_stands_in_for_the_damaged_one(tmp_path: Path) -> None:
    write(tmp_path, 0)
    cut(data_file(tmp_path), 10)
    write(tmp_path, 0)
    store = EncodedStore(tmp_path)
    assert equal(store.read(entry_key("0")), entry(0))
    assert len(store) == 1


@pytest.mark.parametrize("lost", range(1, 37))
def test_process_killed_at_any_byte_of_a_record_leaves_the_entries_before(lost: int, tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    (index,) = tmp_path.glob("*.index")
    cut(index, index.stat().st_size - lost)
    store = EncodedStore(tmp_path)
    assert equal(store.read(entry_key("0")), entry(0))
    assert not store.holds(entry_key("1"))


def test_entry_without_its_index_file_counts_as_none(tmp_path: Path) -> None:
    write(tmp_path, 0)
    next(tmp_path.glob("*.index")).unlink()
    assert len(EncodedStore(tmp_path)) == 0


def test_entries_that_a_living_writer_has_added_can_be_read(tmp_path: Path) -> None:
    with StoreWriter(tmp_path) as writer:
        writer.add(entry_key("0"), entry(0))
        assert equal(EncodedStore(tmp_path).read(entry_key("0")), entry(0))


def test_keys_that_end_with_zero_bytes_are_keys_like_others(tmp_path: Path) -> None:
    keys = [b"k" * 15 + b"\0", b"k" * 14 + b"\0\0", b"\0" * 15 + b"k"]
    with StoreWriter(tmp_path) as writer:
        for number, key in enumerate(keys):
            writer.add(key, entry(number))
    store = EncodedStore(tmp_path)
    assert all(equal(store.read(key), entry(number)) for number, key in enumerate(keys))
    assert store.num_lacking(np.array([*keys, b"another"], "S16")) == 1


def test_parts_of_a_key_are_not_run_together() -> None:
    assert len({entry_key("ab", "c"), entry_key("a", "bc"), entry_key("abc"), entry_key("a", "b", "c")}) == 4


PAIR = StoredPair("a:0", b"source", b"target", (b"more",), "Do.", "Law", "add", PromptLevel.EXPLICIT, Origin("a", 0))


@pytest.mark.parametrize("sees_pictures", [False, True])
def test_keys_follow_what_is_encoded_and_nothing_else(sees_pictures: bool) -> None:
    rule = KeyRule("a model", sees_pictures)

    def changes(pair: StoredPair, other: KeyRule = rule) -> tuple[bool, bool]:
        return rule.latents(PAIR) != other.latents(pair), rule.text(PAIR) != other.text(pair)

    assert changes(PAIR) == (False, False)
    assert changes(replace(PAIR, source=b"other")) == (True, sees_pictures)
    assert changes(replace(PAIR, references=(b"other",))) == (True, sees_pictures)
    assert changes(replace(PAIR, references=())) == (True, sees_pictures)
    assert changes(replace(PAIR, target=b"other")) == (True, False)
    assert changes(replace(PAIR, instruction="Do it.")) == (False, True)
    assert changes(PAIR, KeyRule("another model", sees_pictures)) == (True, True)
    named = replace(
        PAIR, sample_id="b:1", origin=Origin("b", 1), law=None, operation=None, level=PromptLevel.SUPERFICIAL
    )
    assert changes(named) == (False, False)
