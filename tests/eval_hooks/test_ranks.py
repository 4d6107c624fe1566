import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from physedit.eval_hooks.ranks import FailedElsewhere, Ranks


def nothing() -> None:
    pass


def fail() -> None:
    raise RuntimeError("the disk is full")


def on_all(folder: Path, *works: Callable[[], None]) -> list[object]:
    """What each rank's ``together`` raised, or None."""
    barrier = threading.Barrier(len(works), timeout=20)
    raised: list[object] = [None] * len(works)

    def run(rank: int) -> None:
        try:
            Ranks(rank, len(works), lambda: barrier.wait() and None).together(folder, works[rank])
        except Exception as error:
            raised[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_a_failure_on_one_rank_is_quoted_on_the_others(tmp_path: Path) -> None:
    first, second, third = on_all(tmp_path, nothing, fail, nothing)
    assert isinstance(second, RuntimeError)
    for other in (first, third):
        assert isinstance(other, FailedElsewhere)
        assert "rank 1: RuntimeError: the disk is full" in str(other)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_run_that_goes_on_with_other_ranks_forgets_the_failure(tmp_path: Path, num_ranks: int) -> None:
    on_all(tmp_path, nothing, nothing, fail)
    assert on_all(tmp_path, *[nothing] * num_ranks) == [None] * num_ranks
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_marks_of_a_killed_run_are_forgotten(tmp_path: Path, num_ranks: int) -> None:
    for rank in range(3):
        (tmp_path / f".failed.{rank}").write_text("an old error", encoding="utf-8")
    assert on_all(tmp_path, *[nothing] * num_ranks) == [None] * num_ranks
    assert list(tmp_path.iterdir()) == []


def test_things_are_shared_without_rest_and_without_repetition() -> None:
    shares = [list(Ranks(rank, 3).share(range(10))) for rank in range(3)]
    assert sorted(thing for share in shares for thing in share) == list(range(10))
    assert [len(share) for share in shares] == [4, 3, 3]
