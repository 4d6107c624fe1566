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
    """

    rank: int = 0
    world_size: int = 1
    barrier: Callable[[], None] = field(default=lambda: None)

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
        if self.world_size == 1:
            work()
            return
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / f".failed.{self.rank}"
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
        failures = [mark.read_text(encoding="utf-8") for mark in sorted(folder.glob(".failed.*"))]
        self.barrier()  # no rank may clear its mark before all have read
        return failures
