"""Who asks first, and for how long the others wait."""

import time

import pytest

from physedit.eval_hooks.judges import question_queue
from physedit.eval_hooks.judges.question_queue import QuestionQueue


def test_the_others_wait_from_when_the_first_one_went_ahead_and_not_each_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, started = QuestionQueue(), time.monotonic()
    monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 0.0)
    with queue.in_turn(queue.arrive()):
        monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 60.0)
        with queue.in_turn(queue.arrive()):
            assert time.monotonic() - started < 30.0


def test_once_a_first_one_is_over_without_an_answer_another_goes_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QuestionQueue()
    monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 60.0)
    for _ in range(2):
        with queue.in_turn(queue.arrive()):
            assert not queue.has_answered()
