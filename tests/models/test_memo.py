from pathlib import Path

import torch
from torch import Tensor

from physedit.models.memo import TensorMemo, TensorShelf

ENTRY_BYTES = 4 * 10


def entry(value: float) -> tuple[Tensor, ...]:
    return (torch.full((10,), value),)


def test_kept_value_is_not_made_again() -> None:
    memo = TensorMemo(limit_bytes=10 * ENTRY_BYTES)
    calls: list[str] = []

    def make() -> tuple[Tensor, ...]:
        calls.append("made")
        return entry(1.0)

    assert torch.equal(memo.get("a", make)[0], memo.get("a", make)[0])
    assert calls == ["made"]


def test_size_stays_bounded_and_the_least_recently_used_goes_first() -> None:
    memo = TensorMemo(limit_bytes=3 * ENTRY_BYTES)
    for number in range(200):
        memo.get(str(number), lambda number=number: entry(float(number)))
        memo.get("0", lambda: entry(0))
    assert len(memo) == 3
    assert memo.get("0", lambda: entry(-1))[0][0] == 0
    assert memo.get("199", lambda: entry(-1))[0][0] == 199
    assert memo.get("100", lambda: entry(-1))[0][0] == -1


def test_entry_above_the_limit_is_returned_but_not_kept() -> None:
    memo = TensorMemo(limit_bytes=ENTRY_BYTES - 1)
    assert memo.get("a", lambda: entry(5.0))[0][0] == 5
    assert len(memo) == 0


def test_kept_tensors_own_their_storage_and_no_graph() -> None:
    memo = TensorMemo(limit_bytes=10 * ENTRY_BYTES)
    large = torch.zeros(1000, requires_grad=True)
    kept = memo.get("a", lambda: (large[:10] * 2,))[0]
    view = memo.get("b", lambda: (large.detach()[:10],))[0]
    assert not kept.requires_grad
    assert view.untyped_storage().nbytes() == ENTRY_BYTES


def test_cleared_memo_makes_anew() -> None:
    memo = TensorMemo(limit_bytes=10 * ENTRY_BYTES)
    memo.get("a", lambda: entry(1.0))
    memo.clear()
    assert memo.get("a", lambda: entry(2.0))[0][0] == 2


def test_a_shelf_outlives_the_memo_and_gives_the_same_bits(tmp_path: Path) -> None:
    calls: list[str] = []

    def make() -> tuple[Tensor, ...]:
        calls.append("made")
        return torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).t(), torch.ones(4, dtype=torch.bfloat16)

    shelf = TensorShelf(tmp_path / "shelf", torch.device("cpu"))
    first = TensorMemo(limit_bytes=0)  # keeps nothing itself
    with first.shelved(shelf):
        made, found = first.get("a", make), first.get("a", make)
    assert all(torch.equal(*pair) for pair in zip(made, found, strict=True))
    assert [value.dtype for value in found] == [torch.float32, torch.bfloat16]
    assert calls == ["made"]
    first.get("a", make)
    assert calls == ["made", "made"], "outside the context nobody looks at the shelf"


def test_a_damaged_entry_of_a_shelf_is_made_anew(tmp_path: Path) -> None:
    shelf = TensorShelf(tmp_path, torch.device("cpu"))
    shelf.put("a", entry(1.0))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    assert shelf.find("a") is None
    with (memo := TensorMemo(limit_bytes=0)).shelved(shelf):
        memo.get("a", lambda: entry(2.0))
    found = shelf.find("a")
    assert found is not None
    assert found[0][0] == 2
    assert shelf.find("b") is None
