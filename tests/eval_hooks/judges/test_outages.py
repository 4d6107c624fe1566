"""When a question fails by itself, and when the judge has left: through the real client, at every concurrency."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.support.judge_server import Asked, JudgeServer, Reply, busy, failing, judge_server

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.judges import question_queue
from physedit.eval_hooks.judges.judge import JudgeQuestion, JudgeUnavailable, VerdictKind
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.judges.question_queue import QuestionQueue

PICTURE = torch.full((3, 64, 96), 128, dtype=torch.uint8)
BOX = Box(100.0, 100.0, 300.0, 200.0)
QUESTION = JudgeQuestion("Is the shadow there?", BOX)


def judge_of(server: JudgeServer, **settings: object) -> OpenAICompatibleJudge:
    defaults: dict[str, object] = {"model": "seer", "protocol": "strict", "patience_s": 5.0}
    return OpenAICompatibleJudge(base_url=server.base_url, **(defaults | settings))  # type: ignore[arg-type]


def test_an_outage_is_no_verdict() -> None:
    with judge_server(always=failing(503, "loading")) as server, pytest.raises(JudgeUnavailable, match="loading"):
        judge_of(server, patience_s=0.2).answer(PICTURE, QUESTION)


def test_questions_that_wait_for_a_place_are_not_sent_once_the_judge_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 0.0)
    with judge_server(always=failing(503, "loading")) as server:
        judge = judge_of(server, concurrency=2, patience_s=1.0)

        def ask(_: int) -> float:
            started = time.monotonic()
            with pytest.raises(JudgeUnavailable, match="loading"):
                judge.answer(PICTURE, QUESTION)
            return time.monotonic() - started

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    # Two had their patience; a second round would have taken as many requests again.
    assert len([asked for asked in server.asked if "grey" not in asked.texts[0]]) <= 2 * 2


@pytest.mark.parametrize("status", [500, 503])
def test_an_outage_after_answers_makes_nothing_wrong(status: int) -> None:
    with judge_server([Reply()] * 4, failing(status, "out of memory")) as server:
        judge = judge_of(server, protocol="official", concurrency=4, patience_s=1.5, max_failures=2)

        def ask(_: int) -> str:
            try:
                return judge.answer(PICTURE, QUESTION).kind.value
            except JudgeUnavailable:
                return "unscored"

        with ThreadPoolExecutor(8) as pool:
            kinds = list(pool.map(ask, range(16)))
    assert kinds.count("yes") == 4
    assert kinds.count("unscored") == 12


def test_an_answer_that_was_asked_for_before_the_judge_left_is_no_proof_that_it_is_there() -> None:
    has_failed, is_answered = threading.Event(), threading.Event()
    num_failed = 0

    def reply(asked: Asked) -> Reply:
        nonlocal num_failed
        if "Slow" in asked.texts[0] and not is_answered.is_set():
            assert has_failed.wait(10.0)
            return Reply()
        num_failed += 1
        if num_failed == 2:  # the other's answer comes between two failures of this one
            has_failed.set()
            assert is_answered.wait(10.0)
        return failing(500)

    with judge_server(always=reply) as server:
        judge = judge_of(server, concurrency=2, max_failures=2)

        def ask_slow() -> str:
            kind = judge.answer(PICTURE, JudgeQuestion("Slow?", BOX)).kind.value
            is_answered.set()
            return kind

        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(ask_slow)
            with pytest.raises(JudgeUnavailable, match="HTTP 500"):
                judge.answer(PICTURE, JudgeQuestion("Bad?", BOX))
            assert slow.result() == "yes"


def test_questions_that_always_fail_end_nothing_while_others_are_answered() -> None:
    def reply(asked: Asked) -> Reply:
        return failing(500) if "Bad" in asked.texts[0] else Reply()

    with judge_server(always=reply) as server:
        judge = judge_of(server, protocol="official", max_failures=1)
        names = ["Good?", "Bad 1?", "Bad 2?", "Bad 3?", "Good, too?"]
        kinds = [judge.answer(PICTURE, JudgeQuestion(name, BOX)).kind.value for name in names]
    assert kinds == ["yes", "error", "error", "error", "yes"]


BAD_CALLS = {"500": failing(500), "503": failing(503, "gateway"), "cut off": Reply(cut="connection")}


WHERE = [
    (1, "500", ["0"]),
    (1, "cut off", ["5"]),
    (1, "503", ["0", "1", "2"]),
    (2, "500", ["0", "11"]),
    (16, "500", ["0", "1", "2"]),
    (16, "503", ["0"]),
]


@pytest.mark.parametrize(("concurrency", "failure", "bad"), WHERE)
def test_a_question_that_always_fails_is_an_error_and_no_outage_wherever_it_stands(
    concurrency: int, failure: str, bad: list[str]
) -> None:
    def spoilt(asked: Asked) -> Reply:
        return BAD_CALLS[failure] if asked.texts[0].split()[1] in bad else Reply()

    with judge_server(always=spoilt) as server:
        judge = judge_of(server, concurrency=concurrency, patience_s=1.2, max_failures=2)
        with ThreadPoolExecutor(judge.num_askers) as pool:
            kinds = pool.map(lambda n: judge.answer(PICTURE, JudgeQuestion(f"Number {n} there?", BOX)).kind, range(12))
            failed = [str(number) for number, kind in enumerate(kinds) if kind is VerdictKind.ERROR]
    assert failed == bad


@pytest.mark.parametrize("reply", BAD_CALLS.values(), ids=BAD_CALLS)
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_server_that_answers_nothing_has_left_after_one_question_and_a_probe(concurrency: int, reply: Reply) -> None:
    with judge_server(always=reply) as server:
        judge = judge_of(server, concurrency=concurrency, patience_s=1.2, max_failures=2, protocol="official")

        def ask(number: int) -> bool:
            with pytest.raises(JudgeUnavailable):
                judge.answer(PICTURE, JudgeQuestion(f"Number {number} there?", BOX))
            return True

        with ThreadPoolExecutor(judge.num_askers) as pool:
            assert sum(pool.map(ask, range(judge.num_askers))) == judge.num_askers
    probes = [asked for asked in server.asked if "grey all over" in asked.texts[0]]
    assert 1 <= len(probes) <= 3
    assert len({asked.texts[0] for asked in server.asked}) <= concurrency + 1


def test_a_server_that_answers_a_probe_alone_has_left_after_some_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_queue, "_MOST_FAILED_IN_A_ROW", 3)
    with judge_server(always=lambda asked: Reply() if "grey" in asked.texts[0] else failing(500)) as server:
        judge = judge_of(server, concurrency=1, max_failures=1)
        kinds = [judge.answer(PICTURE, JudgeQuestion(f"Number {number}?", BOX)).kind for number in range(3)]
        with pytest.raises(JudgeUnavailable, match="HTTP 500"):
            judge.answer(PICTURE, QUESTION)
    assert kinds == [VerdictKind.ERROR] * 3


HICCUPS = {
    "429": busy(0.3),
    "429 without a hint": failing(429),
    "503": failing(503, "gateway"),
    "cut off": Reply(cut="connection"),
}


@pytest.mark.parametrize("hiccups", [[each] for each in HICCUPS.values()] + [[busy(0.2)] * 4], ids=[*HICCUPS, "429s"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_passing_hiccup_at_the_probe_is_no_outage(concurrency: int, hiccups: list[Reply]) -> None:
    left, is_failing = list(hiccups), threading.Event()

    def reply(asked: Asked) -> Reply:
        if "Bad" in asked.texts[0]:
            is_failing.set()
            return failing(500)
        return left.pop() if is_failing.is_set() and left else Reply()

    with judge_server(always=reply) as server:
        judge = judge_of(server, concurrency=concurrency, max_failures=1)
        names = ["Good 1?", "Bad?", "Good 2?", "Good 3?"]
        with ThreadPoolExecutor(judge.num_askers) as pool:
            kinds = list(pool.map(lambda name: judge.answer(PICTURE, JudgeQuestion(name, BOX)).kind.value, names))
    assert kinds == ["yes", "error", "yes", "yes"]
    assert concurrency > 1 or not left


def test_a_wait_that_is_asked_for_holds_for_the_probe_too() -> None:
    script = [Reply(), failing(500), busy(0.6), Reply()]
    with judge_server(script) as server:
        judge = judge_of(server, concurrency=1, max_failures=1)
        kinds = [judge.answer(PICTURE, JudgeQuestion(name, BOX)).kind for name in ("Good?", "Bad?")]
    assert kinds == [VerdictKind.YES, VerdictKind.ERROR]
    assert server.asked[3].at_s - server.asked[2].at_s >= 0.6


def test_a_server_that_says_only_to_wait_has_left_after_the_probe() -> None:
    with judge_server(always=busy(0.2)) as server, pytest.raises(JudgeUnavailable, match="slow down"):
        judge_of(server, concurrency=1, patience_s=0.5).answer(PICTURE, QUESTION)


def test_a_question_that_is_answered_while_the_probe_fails_is_proof_as_well() -> None:
    queue, error = QuestionQueue(), JudgeUnavailable("broken")

    def fails_while_another_is_answered() -> bool:
        queue.count_answer(time.monotonic())
        return False

    queue.verify_others_are_answered(error, time.monotonic(), queue.arrive(), fails_while_another_is_answered)
    with pytest.raises(JudgeUnavailable, match="broken"):
        queue.verify_others_are_answered(error, time.monotonic(), queue.arrive(), lambda: False)


def test_a_budget_that_is_spent_before_the_probe_is_told_as_a_budget() -> None:
    with judge_server([Reply(), failing(500)]) as server:
        judge = judge_of(server, concurrency=1, max_failures=1, max_requests=2)
        judge.answer(PICTURE, QUESTION)
        with pytest.raises(JudgeUnavailable, match="max_requests"):
            judge.answer(PICTURE, JudgeQuestion("Bad?", BOX))
    assert len(server.asked) == 2


def test_a_question_that_is_stopped_is_no_error_of_its_own() -> None:
    with judge_server() as server:
        judge = judge_of(server)
        judge.answer(PICTURE, QUESTION)
        judge.stop()
        with pytest.raises(JudgeUnavailable, match="told to stop"):
            judge.answer(PICTURE, JudgeQuestion("Another?", BOX))
    assert len(server.asked) == 1
