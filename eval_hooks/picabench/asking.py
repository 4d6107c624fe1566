"""Asking a judge about the pictures of a folder: many questions at once, each picture read once."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from physedit.eval_hooks.files import file_digest
from physedit.eval_hooks.judges.judge import (
    Judge,
    JudgeQuestion,
    JudgeRefusesAll,
    JudgeUnavailable,
    RemoteJudge,
    Verdict,
    VerdictKind,
    is_final,
)
from physedit.eval_hooks.judges.protocols import FAILED_TASK_ANSWER
from physedit.eval_hooks.judges.workbench import WORKBENCH
from physedit.eval_hooks.picabench.annotations import Question
from physedit.eval_hooks.picabench.answer_rows import answer_row, identity
from physedit.eval_hooks.picabench.folder import EditedItem

_TICK_S = 1.0
_LAST_ANSWERS_S = 2.0
"""Ours: how long Ctrl-C waits for questions under way; a server may say nothing for minutes."""
_Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Portrait:
    """An item with the identity of its picture: the hash, marked if it is not the manifest's.

    ``fault`` tells why the picture cannot be judged at all: it is not the one that was edited.
    """

    item: EditedItem
    path: Path
    picture: str
    fault: str | None


def portrait(folder: Path, item: EditedItem, altered: frozenset[str]) -> Portrait:
    """Returns an item's portrait; ``altered`` names the outputs whose bytes are not the manifest's."""
    path = folder / item.output_path
    if not path.is_file():
        return Portrait(item, path, f"missing:{item.index}", None)
    digest = file_digest(path)
    if item.output_path in altered:
        fault = f"{path} is not the picture that was edited: its hash differs"
        return Portrait(item, path, f"altered:{digest}", fault)
    return Portrait(item, path, digest, None)


class Asking:
    """One pass over the questions that are still open; a judge that leaves ends it, and the rest is unscored."""

    def __init__(self, judge: Judge, known: Mapping[str, Verdict], time_budget_s: float | None = None) -> None:
        """Names the judge, what it has answered by ``identity``, and after how long no more is asked."""
        self._judge, self._known = judge, known
        self._time_budget_s, self._started = time_budget_s, time.monotonic()
        self._stopped: JudgeUnavailable | None = None

    @property
    def stopped(self) -> JudgeUnavailable | None:
        """Why the judge left, if it did."""
        return self._stopped

    def open_questions(self, portraits: Sequence[Portrait]) -> list[tuple["Opened", Question]]:
        """Returns the questions without a final verdict, each with its picture, in order.

        Those that were errors come last: some that fail always must not keep the others from being asked.
        """
        found = []
        for failed_before in (False, True):
            for each in portraits:
                questions = [
                    question for question in each.item.questions if self._is_open(each, question, failed_before)
                ]
                opened = Opened(each, self._judge, len(questions))
                found += [(opened, question) for question in questions]
        return found

    @contextmanager
    def rows(
        self,
        questions: Sequence[tuple["Opened", Question]],
        workers: int,
        still_waiting: Callable[[], None] = lambda: None,
    ) -> Iterator[Iterator[_Row]]:
        """Has threads ask; inside, the line of each question comes as soon as it has a verdict.

        ``still_waiting`` is called about once a second while no answer comes. What ends the block before the last line
        has no further question be asked. An end of the process, which is no ``Exception``, has a judge on a server be
        sent nothing more; Ctrl-C leaves what is under way there after two seconds.
        """
        waiting, finished = deque(questions), queue.SimpleQueue[_Row | BaseException]()
        # The end of the process must not wait for a server that says nothing.
        threads = [
            threading.Thread(target=self._work, args=(waiting, finished), name="physedit-asking", daemon=True)
            for _ in range(min(max(1, workers), len(questions)))
        ]
        until_s: float | None = None
        try:
            for thread in threads:
                thread.start()
            yield (self._next(finished, still_waiting) for _ in questions)
        except BaseException as error:
            if isinstance(self._judge, RemoteJudge) and not isinstance(error, Exception):
                self._judge.stop()
                if isinstance(error, KeyboardInterrupt):
                    until_s = time.monotonic() + _LAST_ANSWERS_S
            raise
        finally:
            waiting.clear()
            _join(threads, until_s)

    def _work(
        self, waiting: deque[tuple["Opened", Question]], finished: "queue.SimpleQueue[_Row | BaseException]"
    ) -> None:
        while True:
            try:
                opened, question = waiting.popleft()
            except IndexError:
                return
            try:
                finished.put(self._row(opened, question))
            except BaseException as error:
                finished.put(error)

    def _next(self, finished: "queue.SimpleQueue[_Row | BaseException]", still_waiting: Callable[[], None]) -> _Row:
        while True:
            try:
                found = finished.get(timeout=_TICK_S)
            except queue.Empty:
                still_waiting()
                continue
            if isinstance(found, BaseException):
                raise found
            return found

    def _is_open(self, each: Portrait, question: Question, failed_before: bool) -> bool:
        verdict = self._known.get(identity(each.picture, question, self._judge.judge_id))
        failed = verdict is not None and verdict.kind is VerdictKind.ERROR
        return failed is failed_before and not is_final(verdict, self._judge.protocol)

    def _row(self, opened: "Opened", question: Question) -> _Row:
        verdict = self._verdict(opened, question)
        return answer_row(opened.portrait.picture, question, self._judge.judge_id, verdict)

    def _verdict(self, opened: "Opened", question: Question) -> Verdict:
        try:
            self._raise_if_over()
            image = opened.take()
            self._raise_if_over()  # while the picture was waited for, another question may have found so
            return opened.answer(image, question)
        except JudgeUnavailable as error:
            if isinstance(error, JudgeRefusesAll) and error.verdict is not None:
                self._stopped = error
                return error.verdict
            self._stopped = self._stopped or error
            return Verdict(kind=VerdictKind.UNSCORED, raw="", explanation=str(self._stopped))

    def _raise_if_over(self) -> None:
        if self._stopped is not None:
            raise JudgeUnavailable(str(self._stopped))
        budget_s = self._time_budget_s
        if budget_s is not None and time.monotonic() - self._started >= budget_s:
            raise JudgeUnavailable(f"the time budget for judging, {budget_s:g} s, is used up")


class Opened:
    """A picture that is decoded for its first question and let go after its last."""

    def __init__(self, portrait: Portrait, judge: Judge, num_questions: int) -> None:
        """Nothing is read yet."""
        self.portrait = portrait
        self._judge = judge
        self._lock = threading.Lock()
        self._num_left = num_questions
        self._image: Tensor | None = None
        self._fault = portrait.fault
        self._is_read = False

    def answer(self, image: Tensor | None, question: Question) -> Verdict:
        """Returns the judge's verdict; an error, and nothing is sent, about a picture that cannot be judged.

        A protocol may have its judge asked although the picture cannot be read.

        Raises:
            JudgeUnavailable: see ``Judge.answer``.
        """
        if question.fault is not None:
            return Verdict(kind=VerdictKind.ERROR, raw="", explanation=question.fault, answer=FAILED_TASK_ANSWER)
        if image is None and (self.portrait.fault or self._judge.protocol.shown(None, question.box) is None):
            return Verdict(kind=VerdictKind.ERROR, raw="", explanation=f"not sent to the judge: {self._fault}")
        return self._judge.answer(image, JudgeQuestion(text=question.text, box=question.box))

    def take(self) -> Tensor | None:
        """Returns the picture for one question, None if it cannot be judged; to be called once for each."""
        with self._lock:
            if not self._is_read and self._fault is None:
                try:
                    with WORKBENCH.opening():
                        self._image = self._judge.protocol.read(self.portrait.path)
                except ValueError as error:
                    self._fault = str(error)
                self._is_read = True
            image = self._image
            self._num_left -= 1
            if self._num_left == 0:
                self._image = None
            return image


def _join(threads: Sequence[threading.Thread], until_s: float | None) -> None:
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))


def with_time_left(progress: Callable[[int, int, str], None], total: int, label: str) -> Callable[[int], None]:
    """Returns what reports how many of ``total`` are done, with the time that the rest will take at this rate."""
    started = time.monotonic()

    def report(done: int) -> None:
        left_s = (time.monotonic() - started) / done * (total - done)
        progress(done, total, f"{label}, {left_s:.0f} s left" if done < total else label)

    return report
