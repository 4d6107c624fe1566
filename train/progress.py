"""What a person sees while a run goes on: a bar on a terminal, a plain line now and then elsewhere."""

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

logger = logging.getLogger(__name__)

LINES_OFF_TERMINAL = 10
"""A log file gets about so many lines over a whole run."""


class ProgressBar:
    """The training bar with loss, samples/s and the time left, and a second one while hooks edit pictures."""

    def __init__(self, num_steps: int, start_step: int, global_batch: int, *, is_main: bool) -> None:
        self._num_steps = num_steps
        self._global_batch = global_batch
        self._every = max(1, num_steps // LINES_OFF_TERMINAL)
        self._said = start_step
        self._is_main = is_main
        self._bar = _bar(TextColumn("{task.fields[text]}"), TimeRemainingColumn()) if is_main else None
        self._training: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._start_step = start_step

    def __enter__(self) -> "ProgressBar":
        if self._bar is not None:
            self._bar.start()
            self._training = self._bar.add_task("train", total=self._num_steps, completed=self._start_step, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, step: int) -> None:
        """Shows that ``step`` is done."""
        if self._bar is not None and self._training is not None:
            self._bar.update(self._training, completed=step)

    def numbers(self, step: int, loss: float, samples_per_s: float) -> None:
        """Shows the newest loss and rate."""
        text = f"loss {loss:.4f}  {samples_per_s:.1f} samples/s"
        if self._bar is not None and self._training is not None:
            self._bar.update(self._training, text=text)
        elif self._is_main and (step - self._said >= self._every or step == self._num_steps):
            self._said = step
            seconds = (self._num_steps - step) * self._global_batch / samples_per_s
            logger.info("step %d/%d  %s  %.0f s of training left", step, self._num_steps, text, seconds)

    def hook(self, done: int, total: int, label: str) -> None:
        """Shows how far a hook is; the bar disappears when it is done."""
        self._show("hook", done, total, label)

    def late(self, done: int, total: int, label: str) -> None:
        """Shows how far a hook is that judges beside training; another thread may call it."""
        self._show("late", done, total, f"{label}, beside training")

    def _show(self, place: str, done: int, total: int, label: str) -> None:
        if self._bar is None:
            return
        if place not in self._tasks:
            self._tasks[place] = self._bar.add_task(label, total=total, text="")
        self._bar.update(self._tasks[place], completed=done, total=total, description=label)
        if done >= total:
            self._bar.remove_task(self._tasks.pop(place))


class JudgingBar:
    """How far judging is; the label tells the time left: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        self._said = 0
        self._bar = _bar()
        self._task: TaskID | None = None

    def __enter__(self) -> "JudgingBar":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int, label: str) -> None:
        """Shows how many questions are answered; ``label`` tells the time left."""
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(label, total=total)
            self._bar.update(self._task, completed=done, total=total, description=label)
        elif done == total or done < self._said or done - self._said >= max(1, total // LINES_OFF_TERMINAL):
            self._said = 0 if done == total else done
            logger.info("%d of %d questions: %s", done, total, label)


class RowsBar:
    """How far a pass over rows is: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._every = max(1, num_rows // LINES_OFF_TERMINAL)
        self._bar = _bar(TextColumn("{task.fields[text]}"), TimeRemainingColumn())
        self._task: TaskID | None = None

    def __enter__(self) -> "RowsBar":
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("rows", total=self._num_rows, text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, num_dropped: int) -> None:
        """Shows that ``done`` rows are seen, of which ``num_dropped`` cannot be used."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, text=f"{num_dropped} dropped")
        elif done % self._every == 0 or done == self._num_rows:
            logger.info("%d of %d rows looked at, %d dropped", done, self._num_rows, num_dropped)


def _bar(*more: ProgressColumn) -> Progress | None:
    """Returns a bar with these columns beside what is done and how far it is, None off a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    done = TextColumn("{task.completed:.0f}/{task.total:.0f}")
    return Progress(TextColumn("{task.description}"), BarColumn(), done, *more, console=console)
