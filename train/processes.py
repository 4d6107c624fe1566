"""Agreement between the processes of a run: short collectives, patient waits, and news of a process that is gone.

A wait may last as long as an evaluation, so it is no collective: ranks look into the launch's key-value store, and
every rank beats there from a thread of its own. A rank that has failed, or whose beat has stopped, ends the others.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
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
_LONGEST_PAUSE_S = 0.25
_T = TypeVar("_T")
_STOPPED = "stopped"


def end_with_launcher() -> None:
    """Has this process end when the launcher that started it is gone; without other ranks it does nothing.

    A rank that has not joined the others yet would wait for the launcher's store as long as for a collective.

    Raises:
        FailedElsewhere: it is gone already.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    threading.Thread(target=_follow, args=(os.getppid(),), name="physedit-launcher", daemon=True).start()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # rank 0 has the store, and may come later than this one
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection(address, timeout=LOST_AFTER_S).close()
    except OSError as error:
        raise FailedElsewhere(f"The launcher at {address[0]}:{address[1]} is gone: {error}.") from error


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(BEAT_S)
    time.sleep(GRACE_S)
    logger.error("The launcher of this process is gone, and so it ends.")
    os._exit(1)


class Processes:
    """The ranks of a run as the run needs them between steps. Every rank makes one, and calls it alike."""

    def __init__(self, num_processes: int, rank: int = 0) -> None:
        """Joins the others, who must do so too."""
        self.num_processes = num_processes
        self.rank = rank
        self._scope, self._num_waits, self._num_scopes = "run", 0, 0
        # A group of its own on the CPU: a collective on the GPU would wait for all work queued there.
        self._group = dist.new_group(backend="gloo") if num_processes > 1 else None
        self._watch = _Watch(num_processes, rank) if num_processes > 1 else None

    def largest(self, value: int) -> int:
        """Returns the largest ``value`` over all ranks."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._group)
        return int(shared.item())

    def wait(self) -> None:
        """Returns once every rank has called it, however long that takes.

        Raises:
            FailedElsewhere: a rank has failed or is gone; or, within ``attempt``, its attempt has failed.
        """
        if self._watch is None:
            return
        self._num_waits += 1
        self._watch.gather(f"{self._scope}/wait/{self._num_waits}", gave_up=f"{self._scope}/gave_up")

    @contextmanager
    def rank_0_first(self) -> Iterator[None]:
        """Runs the body on rank 0, then on the others."""
        if self.rank > 0:
            self.wait()
        yield
        if self.rank == 0:
            self.wait()

    def attempt(self, work: Callable[[], _T]) -> tuple[_T | None, list[Exception]]:
        """Does ``work``, which may ``wait``, on every rank and returns its result and no errors, the same on all ranks.

        Where it fails on a rank, the waits in it end on all of them; then there is no result on any rank. The errors
        are this rank's own, if it has one of its own, and those that other ranks told.

        Raises:
            Stopped: on every rank, where a rank was stopped.
        """
        if self._watch is None:
            try:
                return work(), []
            except Exception as error:
                return None, [error]
        outer = self._scope, self._num_waits
        self._num_scopes += 1
        self._scope, self._num_waits = f"attempt/{self._num_scopes}", 0
        try:
            return self._attempted(self._watch, work)
        finally:
            self._scope, self._num_waits = outer

    def together(self, work: Callable[[], _T]) -> _T:
        """Does ``work`` as ``attempt`` and returns its result.

        Raises:
            Exception: what ``work`` raised here.
            FailedElsewhere: it failed on another rank; the message quotes that.
        """
        result, errors = self.attempt(work)
        if errors:
            raise errors[0]
        return cast(_T, result)  # without errors there is one

    def tell_failure(self, error: BaseException) -> None:
        """Tells the other ranks that this one ends because of ``error``."""
        if self._watch is not None:
            self._watch.tell("failed", self._quoted(error))
            self._watch.stop()

    def close(self) -> None:
        """Ends the beat once every rank is here; called at the run's good end."""
        if self._watch is not None:
            self.wait()
            self._watch.leave()

    def _attempted(self, watch: "_Watch", work: Callable[[], _T]) -> tuple[_T | None, list[Exception]]:
        gave_up = f"{self._scope}/gave_up"
        result, own = None, None
        try:
            result = work()
        except Exception as error:
            own = error
            watch.tell(gave_up, str(error) if isinstance(error, FailedElsewhere) else self._quoted(error))
        except BaseException:
            watch.tell(gave_up, _STOPPED)
            raise
        watch.gather(f"{self._scope}/done", gave_up=None, stopped=gave_up)
        told = watch.told(gave_up)
        if told is None:
            return (result, []) if own is None else (None, [own])
        if told == _STOPPED:
            raise Stopped("Stopped with another process; what there is so far is kept.")
        elsewhere = FailedElsewhere(told)
        return None, [elsewhere if own is None or isinstance(own, FailedElsewhere) else own, elsewhere]

    def _quoted(self, error: BaseException) -> str:
        return f"rank {self.rank}: {type(error).__name__}: {error}"


class _Watch:
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

    def gather(self, key: str, *, gave_up: str | None, stopped: str | None = None) -> None:
        """Returns once all ranks have called it with ``key``; raises where that will not be."""
        pause = 0.001
        self._ask(lambda: self._store.add(key, 1))
        while self._ask(lambda: self._store.add(key, 0)) < self._num:
            self._raise_if_lost()
            if gave_up is not None and (told := self.told(gave_up)) is not None:
                if told == _STOPPED:
                    raise Stopped("Stopped with another process; what there is so far is kept.")
                raise FailedElsewhere(f"Another process failed. {told}")
            if stopped is not None and self.told(stopped) == _STOPPED:
                raise Stopped("Stopped with another process; what there is so far is kept.")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

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
        if self._beats.check(["failed"]):
            return f"Another process failed. {self._beats.get('failed').decode()}"
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
