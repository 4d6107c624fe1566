"""Agreement between the processes of a run: short collectives, patient waits, and news of a process that is gone.

A wait may last as long as an evaluation, so it is no collective: ranks look into the launch's key-value store, and
every rank beats there from a thread of its own. A rank that has failed, or whose beat has stopped, ends the others.

Where the denoiser is cut over the ranks (ZeRO-3), each forward pass is a collective too: ranks meet in the store before
it, so that none begins one that another will not make.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from physedit.eval_hooks.ranks import FailedElsewhere
from physedit.train import watch
from physedit.train.signals import Stopped
from physedit.train.watch import FAILED, STOPPED, OutOfStep, Watch

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_WAIT, _PASS = "wait", "pass"
"""Where ranks meet: in a wait, and before a forward pass in which all of them take part."""


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
        socket.create_connection(address, timeout=watch.LOST_AFTER_S).close()
    except OSError as error:
        raise FailedElsewhere(f"The launcher at {address[0]}:{address[1]} is gone: {error}.") from error


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(watch.BEAT_S)
    time.sleep(watch.GRACE_S)
    logger.error("The launcher of this process is gone, and so it ends.")
    os._exit(1)


@contextmanager
def leaving_last() -> Iterator[None]:
    """Around the end of a rank that leaves because another has failed: the launcher is to see that one end first.

    It names the first that ends, and ends the others by SIGTERM.
    """
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(watch.GRACE_S)


class Processes:
    """The ranks of a run as the run needs them between steps. Every rank makes one, and calls it alike."""

    def __init__(self, num_processes: int, rank: int = 0) -> None:
        """Joins the others, who must do so too."""
        self.num_processes = num_processes
        self.rank = rank
        self._scope, self._num_waits, self._num_scopes = "run", 0, 0
        # A group of its own on the CPU: a collective on the GPU would wait for all work queued there.
        self._group = dist.new_group(backend="gloo") if num_processes > 1 else None
        self._watch = Watch(num_processes, rank) if num_processes > 1 else None

    def largest(self, value: int) -> int:
        """Returns the largest ``value`` over all ranks."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._group)
        return int(shared.item())

    def gather(self, value: _T) -> list[_T]:
        """Returns the ``value`` of every rank, in their order, once every rank has called it, as ``wait``."""
        if self._group is None:
            return [value]
        self.wait()
        values: list[Any] = [None] * self.num_processes
        dist.all_gather_object(values, value, group=self._group)
        return values

    def wait(self) -> None:
        """Returns once every rank has called it, however long that takes.

        Raises:
            FailedElsewhere: a rank has failed or is gone; or, within ``attempt``, its attempt has failed.
            OutOfStep: within ``attempt``, another rank is elsewhere and will not come.
        """
        self._meet(_WAIT)

    @contextmanager
    def rank_0_first(self) -> Iterator[None]:
        """Runs the body on rank 0, then on the others."""
        if self.rank > 0:
            self.wait()
        yield
        if self.rank == 0:
            self.wait()

    def attempt(self, work: Callable[[], _T], passes: nn.Module | None = None) -> tuple[_T | None, list[Exception]]:
        """Does ``work``, which may ``wait``, on every rank and returns its result and no errors, the same on all ranks.

        Where it fails on a rank, the waits in it end on all of them; then there is no result on any rank. The errors
        are this rank's own, if it has one of its own, and those that other ranks told.

        Args:
            work: what every rank does.
            passes: a module that is cut over the ranks: they meet before each of its forward passes in ``work``.

        Raises:
            Stopped: on every rank, where a rank was stopped.
            Exception: what this rank raised within a forward pass of ``passes``. The others wait in it for this one in
                vain, and its parameters are not what they were: the run ends.
        """
        if self._watch is None:
            try:
                return work(), []
            except Exception as error:
                return None, [error]
        outer = self._scope, self._num_waits
        self._num_scopes += 1
        self._scope, self._num_waits = f"attempt/{self._num_scopes}", 0
        shared = _Passes(lambda: self._meet(_PASS))
        try:
            with nullcontext() if passes is None else shared.of(passes):
                return self._attempted(self._watch, work, shared)
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

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Around all that the ranks do: its failure on one of them ends the others, and all leave it together."""
        try:
            yield
        except Exception as error:
            self.tell_failure(error)
            raise
        except Stopped:
            self.close()
            raise
        self.close()

    def tell_failure(self, error: BaseException) -> None:
        """Tells the other ranks that this one ends because of ``error``."""
        if self._watch is not None:
            self._watch.tell(FAILED, self._quoted(error))
            self._watch.stop()

    def close(self) -> None:
        """Ends the beat once every rank is here; called at the run's good end."""
        if self._watch is not None:
            self.wait()
            self._watch.leave()

    def _meet(self, kind: str) -> None:
        if self._watch is None:
            return
        self._num_waits += 1
        place = f"{self._scope}/{self._num_waits}"
        elsewhere = (f"{place}/{_PASS if kind == _WAIT else _WAIT}", f"{self._scope}/done")
        patience_s = watch.EXPLAIN_S if kind == _PASS else 0.0
        self._watch.gather(
            f"{place}/{kind}", gave_up=f"{self._scope}/gave_up", elsewhere=elsewhere, patience_s=patience_s
        )
        if self.rank == 0 and self._num_waits > 1:  # all have left the one before: an evaluation has very many
            before = f"{self._scope}/{self._num_waits - 1}"
            self._watch.forget(f"{before}/{_WAIT}", f"{before}/{_PASS}")

    def _attempted(self, others: Watch, work: Callable[[], _T], passes: "_Passes") -> tuple[_T | None, list[Exception]]:
        gave_up = f"{self._scope}/gave_up"
        result, own = None, None
        try:
            result = work()
        except Exception as error:
            if passes.is_within:
                logger.error("[rank %d] Failed within a pass of all ranks; the run ends.", self.rank, exc_info=error)
                self.tell_failure(error)
                _end_soon()
                raise
            own = _cause(error)
            others.tell(gave_up, str(own) if isinstance(own, FailedElsewhere) else self._quoted(own))
        except BaseException:
            others.tell(gave_up, STOPPED)
            raise
        others.gather(f"{self._scope}/done", gave_up=None, stopped=gave_up)
        told = others.told(gave_up)
        if told is None:
            return (result, []) if own is None else (None, [own])
        if told == STOPPED:
            raise Stopped("Stopped with another process; what there is so far is kept.")
        elsewhere = FailedElsewhere(told)
        return None, [elsewhere if own is None or isinstance(own, FailedElsewhere) else own, elsewhere]

    def _quoted(self, error: BaseException) -> str:
        return f"rank {self.rank}: {type(error).__name__}: {error}"


class _Passes:
    """Forward passes of a module that is cut over the ranks: each begins on all of them or on none."""

    def __init__(self, meet: Callable[[], None]) -> None:
        self._meet = meet
        self.is_within = False
        """Stays true where a pass has raised."""

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Within the context ranks meet before every pass of ``module``."""
        # Before the hooks that were there first, which gather parameters.
        hooks = [
            module.register_forward_pre_hook(self._begin, prepend=True), module.register_forward_hook(self._end),
        ]  # fmt: skip
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, _module: nn.Module, _inputs: object) -> None:
        self._meet()
        self.is_within = True

    def _end(self, _module: nn.Module, _inputs: object, _output: object) -> None:
        self.is_within = False


def _cause(error: Exception) -> Exception:
    """Returns what a rank failed with before it waited for others, which were elsewhere, to say so."""
    while isinstance(error, OutOfStep) and isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def _end_soon() -> None:
    """Has this process end by force unless it does by itself: what it has begun on a device may never finish."""
    ending = threading.Timer(watch.GRACE_S, os._exit, (1,))
    ending.daemon = True
    ending.start()
