"""Work that several processes share through a folder, without a collective library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class FailedElsewhere(RuntimeError):
    """Another rank could not do its share of the evaluation."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that share an evaluation; the default is a process of its own.

    Attributes:
        rank: this process.
        world_size: how many there are.
        barrier: waits for all of them.
        is_beside_others: others, whom this one does not wait for, may use the same folders meanwhile.
    """

    rank: int = 0
    world_size: int = 1
    barrier: Callable[[], None] = field(default=lambda: None)
    is_beside_others: bool = False

    def share(self, things: Sequence[T]) -> Sequence[T]:
        """Returns every ``world_size``-th thing, beginning with the ``rank``-th: no thing twice, none left out."""
        return things[self.rank :: self.world_size]

    def together(self, folder: Path, work: Callable[[], None]) -> None:
        """Does ``work`` here and waits for all ranks; every rank must call it.

        A failure on one rank ends the call on all of them, so that no rank waits for one that has left.

        Raises:
            FailedElsewhere: another rank failed; the message quotes it.
            Exception: what ``work`` raised here.
        """
        self._forget_absent_ranks(folder)
        if self.world_size == 1:
            work()
            return
        folder.mkdir(parents=True, exist_ok=True)
        mark = _mark_of(self.rank, folder)
        mark.unlink(missing_ok=True)
        try:
            work()
        except Exception as error:
            mark.write_text(f"rank {self.rank}: {type(error).__name__}: {error}", encoding="utf-8")
            self._failures(folder)
            raise
        failures = self._failures(folder)
        if failures:
            raise FailedElsewhere(
                f"The evaluation in {folder} stopped because another process failed. " + " | ".join(failures)
            )

    def first_alone(self, folder: Path, work: Callable[[], None]) -> None:
        """As ``together``, but only rank 0 does the work."""
        self.together(folder, work if self.rank == 0 else lambda: None)

    def _failures(self, folder: Path) -> list[str]:
        self.barrier()
        marks = [_mark_of(rank, folder) for rank in range(self.world_size)]
        failures = [mark.read_text(encoding="utf-8") for mark in marks if mark.exists()]
        self.barrier()  # no rank may clear its mark before all have read
        _mark_of(self.rank, folder).unlink(missing_ok=True)
        return failures

    def _forget_absent_ranks(self, folder: Path) -> None:
        """Removes marks that an earlier run on more ranks left: no rank of this one reads or writes them."""
        if self.rank > 0 or self.is_beside_others:
            return
        present = set() if self.world_size == 1 else {_mark_of(rank, folder) for rank in range(self.world_size)}
        for mark in folder.glob(".failed.*"):
            if mark not in present:
                mark.unlink()


def _mark_of(rank: int, folder: Path) -> Path:
    return folder / f".failed.{rank}"
