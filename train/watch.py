"""A rank's view of the others in the launch's key-value store: meetings without collectives, words, and beats."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from physedit.eval_hooks.ranks import FailedElsewhere
from physedit.train.signals import Stopped

logger = logging.getLogger(__name__)

BEAT_S = 3.0
"""Ours: how often a rank shows that it is there, and looks after the others."""
LOST_AFTER_S = 40.0
"""Ours: a rank without a beat for so long is gone. Longer than any one call that keeps Python's other threads out."""
GRACE_S = 10.0
"""Ours: how long a rank that must end has to leave by itself, which it cannot from within a collective."""
EXPLAIN_S = 15.0
"""Ours: how long a rank before a pass gives another, which waits elsewhere, to tell that it has failed."""
_LONGEST_PAUSE_S = 0.25
STOPPED = "stopped"
"""The word that a rank leaves where it was stopped, instead of one about its failure."""
FAILED = "failed"
"""Where a rank that ends leaves word why."""
_T = TypeVar("_T")


class OutOfStep(RuntimeError):
    """Ranks do not make the same waits and forward passes, so that one would wait for another for ever."""


class Watch:
    """This rank's view of the others in the launch's store, and the thread that keeps it."""

    def __init__(self, num_processes: int, rank: int) -> None:
        store: Any = dist.distributed_c10d._get_default_store()
        # A connection of its own: another thread's blocking look-up must not hold up the beat.
        self._store = dist.distributed_c10d.PrefixStore("physedit", store)
        self._beats = dist.distributed_c10d.PrefixStore("physedit", store.clone())
        self._num, self._rank = num_processes, rank
        self._last: dict[int, tuple[int, float]] = {}
        self._lost: str | None = None
        self._is_over = threading.Event()
        self._beats.add(self._beat_key(rank), 1)
        self._thread = threading.Thread(target=self._run, name="physedit-beat", daemon=True)
        self._thread.start()

    def gather(
        self,
        key: str,
        *,
        gave_up: str | None,
        stopped: str | None = None,
        elsewhere: Sequence[str] = (),
        patience_s: float = 0.0,
    ) -> None:
        """Returns once all ranks have called it with ``key``; raises where that will not be.

        Args:
            key: of this meeting.
            gave_up: under which a rank leaves word that it has left.
            stopped: under which a rank leaves word that it was stopped.
            elsewhere: other meetings, to which no rank may have gone.
            patience_s: how long one that has may take to leave word.
        """
        pause, deadline = 0.001, None
        self._ask(lambda: self._store.add(key, 1))
        while True:
            # Asked first: a rank goes on from here only once it was here, and leaves word before it gives up.
            is_elsewhere = any(self._ask(partial(self._store.check, [other])) for other in elsewhere)
            if self._ask(lambda: self._store.add(key, 0)) >= self._num:
                return
            self._raise_if_lost()
            if gave_up is not None and (told := self.told(gave_up)) is not None:
                if told == STOPPED:
                    raise Stopped("Stopped with another process; what there is so far is kept.")
                raise FailedElsewhere(f"Another process failed. {told}")
            if stopped is not None and self.told(stopped) == STOPPED:
                raise Stopped("Stopped with another process; what there is so far is kept.")
            if is_elsewhere and (told := self.told(FAILED)) is not None:
                raise FailedElsewhere(f"Another process failed. {told}")
            if is_elsewhere and deadline is None:
                deadline = time.monotonic() + patience_s
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfStep(
                    f"Rank {self._rank} waits at {key}, and another rank is elsewhere: every rank must make the same "
                    "waits and, where the denoiser is cut over them (ZeRO-3), the same number of forward passes."
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def forget(self, *keys: str) -> None:
        """Removes meetings at which no rank is any more, from the memory of the launch."""
        for key in keys:
            self._ask(partial(self._store.delete_key, key))

    def tell(self, key: str, text: str) -> None:
        """Leaves a word for all ranks, the first of which stays."""
        try:
            if self._store.add(f"{key}/writers", 1) == 1:
                self._store.set(key, text)
        except RuntimeError as error:
            logger.warning("The other processes cannot be told: %s", error)

    def told(self, key: str) -> str | None:
        """Returns the word that was left, if any."""
        return self._ask(lambda: self._store.get(key).decode() if self._store.check([key]) else None)

    def stop(self) -> None:
        """Ends the beat."""
        self._is_over.set()
        self._thread.join()

    def leave(self) -> None:
        """Ends the beat; the rank with the store goes last."""
        self.stop()
        try:
            self._store.add("left", 1)
            while self._rank == 0 and self._store.add("left", 0) < self._num and self._lost is None:
                time.sleep(0.01)
        except RuntimeError:
            return  # the others have left already

    def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return question()
        except RuntimeError as error:
            raise FailedElsewhere(f"The process that started this run is gone: {error}") from error

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise FailedElsewhere(self._lost)

    def _run(self) -> None:
        while not self._is_over.wait(BEAT_S):
            try:
                self._beats.add(self._beat_key(self._rank), 1)
                self._lost = self._found_lost()
            except RuntimeError as error:
                self._lost = f"The process that started this run is gone: {error}"
            if self._lost is not None:
                break
        if self._lost is None:
            return
        if not self._is_over.wait(GRACE_S):
            logger.error("[rank %d] %s This process waits for it in vain and ends.", self._rank, self._lost)
            os._exit(1)

    def _found_lost(self) -> str | None:
        if self._beats.check([FAILED]):
            return f"Another process failed. {self._beats.get(FAILED).decode()}"
        now = time.monotonic()
        for rank in range(self._num):
            if rank == self._rank:
                continue
            beat = self._beats.add(self._beat_key(rank), 0)
            if beat == 0:
                continue  # it has not joined yet
            if rank not in self._last or self._last[rank][0] != beat:
                self._last[rank] = (beat, now)
            elif now - self._last[rank][1] > LOST_AFTER_S:
                return f"Rank {rank} has not been heard of for {LOST_AFTER_S:.0f} s: it was killed, or hangs."
        return None

    def _beat_key(self, rank: int) -> str:
        return f"beat/{rank}"
