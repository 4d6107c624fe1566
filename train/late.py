"""Judging beside training: a thread of rank 0 that finishes evaluations whose pictures are made.

It takes part in no collective and touches no model: it waits for a judge, reads files and writes files. What it finds
is recorded by the thread that trains, when that looks.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.hook import EvalReport, LateContext, LateHook

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_LAST_ANSWERS_S = 10.0
"""Ours: how long an end waits for the questions that are under way; their answers are kept in any case."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An evaluation that has ended: its report, or why there is none."""

    hook: str
    step: int
    report: EvalReport | None
    error: Exception | None


class _Cancelled(BaseException):
    """The run ends; as ``Stopped`` it is no error to catch."""


class LateReports:
    """Evaluations under way, one after the other, in the order in which they were handed over."""

    def __init__(
        self, run_folder: Path, base_cache: Path, progress: Callable[[int, int, str], None] = lambda *_: None
    ) -> None:
        """Starts nothing yet.

        Args:
            run_folder: of the run.
            base_cache: as in ``EvalContext``.
            progress: called with (done, total, label) after every answer, from the thread.
        """
        self._run_folder, self._base_cache, self._progress = run_folder, base_cache, progress
        self._asked: queue.Queue[tuple[LateHook, int]] = queue.Queue()
        self._ended: queue.Queue[Arrival] = queue.Queue()
        self._open: list[int] = []
        self._under_way: LateHook | None = None
        self._is_cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def num_open(self) -> int:
        """How many evaluations were handed over and have not been taken from ``arrived``."""
        return len(self._open)

    @property
    def open_steps(self) -> set[int]:
        """Their steps."""
        return {*self._open}

    def submit(self, hook: LateHook, step: int) -> None:
        """Hands over an evaluation whose pictures are made."""
        self._open.append(step)
        self._asked.put((hook, step))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="physedit-judging", daemon=True)
            self._thread.start()

    def arrived(self) -> list[Arrival]:
        """Returns the evaluations that have ended since the last call; does not wait."""
        found = []
        while not self._ended.empty():
            found.append(self._ended.get())
        for arrival in found:
            self._open.remove(arrival.step)
        return found

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Returns when an evaluation has ended, none is open, or ``is_over``."""
        while self._open and self._ended.empty() and not is_over():
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Ends the thread; what it has answered is on the disk, and the rest can be judged later."""
        self._is_cancelled.set()
        if self._thread is None:
            return
        under_way = self._under_way
        if under_way is not None:
            under_way.stop()
        self._thread.join(timeout=_LAST_ANSWERS_S)
        if self._thread.is_alive():
            logger.warning("The judge is still being waited for; its answers until now are kept.")

    def _work(self) -> None:
        while not self._is_cancelled.is_set():
            try:
                hook, step = self._asked.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            self._under_way = hook
            try:
                self._ended.put(self._finished(hook, step))
            except _Cancelled:
                return

    def _finished(self, hook: LateHook, step: int) -> Arrival:
        context = LateContext(step, self._run_folder, self._base_cache, self._on_answer)
        try:
            return Arrival(hook.name, step, hook.finish(context), None)
        except Exception as error:
            return Arrival(hook.name, step, None, error)

    def _on_answer(self, done: int, total: int, label: str) -> None:
        if self._is_cancelled.is_set():
            raise _Cancelled
        self._progress(done, total, label)
