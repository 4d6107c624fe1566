import torch
from torch import Tensor

from physedit.models.memo import TensorMemo

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
