"""Calls that may wait for a server, made beside training."""

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Errands:
    """Calls made one after the other by a thread that ends with the process; one that fails is told of and left."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._waiting: queue.Queue[tuple[str, Callable[[], object]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._num_open = 0
        self._changed = threading.Condition()

    def add(self, what: str, call: Callable[[], object]) -> None:
        """Has ``call`` made soon; ``what`` names it in the log should it fail."""
        with self._changed:
            self._num_open += 1
        self._waiting.put((what, call))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="physedit-errands", daemon=True)
            self._thread.start()

    def finish(self, seconds: float) -> int:
        """Waits until all calls are made, or so long; returns how many are not."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_open == 0, timeout=seconds)
            return self._num_open

    def _work(self) -> None:
        while True:
            what, call = self._waiting.get()
            try:
                call()
            except Exception as error:  # whatever a client raises: the run must not end by it
                logger.warning("%s could not be recorded: %r", what, error)
            with self._changed:
                self._num_open -= 1
                self._changed.notify_all()
