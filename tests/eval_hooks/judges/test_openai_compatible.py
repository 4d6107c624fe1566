"""The judge over the network, through the real client, against a server that misbehaves as real ones do."""

import io
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.support.judge_server import FORMS, NO, YES, JudgeServer, Reply, failing, judge_server

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.judges import question_queue
from physedit.eval_hooks.judges.judge import (
    JudgeQuestion,
    JudgeRefusesAll,
    JudgeUnavailable,
    Verdict,
    VerdictKind,
)
from physedit.eval_hooks.judges.openai_compatible import OpenAICompatibleJudge
from physedit.eval_hooks.judges.protocols import INSTRUCTION, OfficialProtocol, StrictProtocol

PICTURE = torch.full((3, 64, 96), 128, dtype=torch.uint8)
BOX = Box(100.0, 100.0, 300.0, 200.0)
QUESTION = JudgeQuestion("Is the shadow there?", BOX)


def judge_of(server: JudgeServer, **settings: object) -> OpenAICompatibleJudge:
    defaults: dict[str, object] = {"model": "seer", "protocol": "strict", "patience_s": 5.0}
    return OpenAICompatibleJudge(base_url=server.base_url, **(defaults | settings))  # type: ignore[arg-type]


def test_gpt_is_asked_as_the_published_script_asks() -> None:
    with judge_server() as server:
        judge_of(server, api="responses", protocol="official").answer(PICTURE, QUESTION)
    (asked,) = server.asked
    assert asked.path == "/v1/responses"
    assert asked.body.keys() - {"stream"} == {"model", "input"}
    assert [part["type"] for part in asked.parts] == ["input_text", "input_image"]
    assert asked.texts == [QUESTION.text + INSTRUCTION]
    assert asked.picture == OfficialProtocol("gpt").shown(PICTURE, BOX)


def test_qwen_is_asked_as_the_published_script_asks() -> None:
    settings = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 256}
    with judge_server() as server:
        judge_of(server, protocol="official", **settings).answer(PICTURE, QUESTION)
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert {name: asked.body[name] for name in settings} == settings
    assert [part["type"] for part in asked.parts] == ["image_url", "text", "text"]
    assert asked.texts == [QUESTION.text, INSTRUCTION]
    assert asked.picture == OfficialProtocol("qwen").shown(PICTURE, BOX)


def test_a_strict_judge_is_held_to_a_schema() -> None:
    with judge_server() as server:
        verdict = judge_of(server).answer(PICTURE, QUESTION)
    schema = server.asked[0].body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["enum"] == ["Yes", "No"]
    assert verdict == Verdict(VerdictKind.YES, YES, "it is there", "Yes")


OFFICIAL = {
    "json yes": "Yes", "json no": "No", "fenced": "No", "two objects": "No", "thinking": "No", "plain": "Yes",
    "lower case": "No", "with a reason": "No", "a sentence": "Yes", "hedged": "No", "nothing there": "No",
    "boolean": '{"answer":', "wordy json": "Yes, it is", "cut json": "Yes", "chinese": "是的", "empty": "Unknown",
}  # fmt: skip
"""What the published script stores as ``model_answer``, quirks and all."""
STRICT = {
    "json yes": "yes", "json no": "no", "fenced": "no", "two objects": "yes", "thinking": "no", "plain": "yes",
    "lower case": "no", "with a reason": "no", "a sentence": "unparsed", "hedged": "unparsed",
    "nothing there": "unparsed", "boolean": "yes", "wordy json": "yes", "cut json": "unparsed", "chinese": "unparsed",
    "empty": "unparsed",
}  # fmt: skip


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_answer_means_what_the_protocol_says(form: str, api: str) -> None:
    with judge_server(always=Reply(text=FORMS[form])) as server:
        official = judge_of(server, api=api, protocol="official").answer(PICTURE, QUESTION)
        strict = judge_of(server, api=api).answer(PICTURE, QUESTION)
    assert official.answer == OFFICIAL[form]
    assert official.raw == FORMS[form]
    assert strict.kind.value == STRICT[form]
    assert OfficialProtocol().is_correct(official, "Yes") == (OFFICIAL[form] == "Yes")
    expected = None if STRICT[form] == "unparsed" else STRICT[form] == "yes"
    assert StrictProtocol().is_correct(strict, "Yes") == expected


REPLIES = [
    ("<think>yes, there is a shadow</think>No", "no"),
    ("<think>yes</think> No. <think>or yes?</think> Yes.", "yes"),
    ("<think>the answer is yes, but I never finish", "unparsed"),
    ("not yes", "unparsed"),
    ("No, although yes would be tempting.", "no"),
    ('```json\n{"answer": "No", "explanation": "yes, I looked"}\n```', "no"),
    ('{"answer": "No"} On reflection: {"answer": "Yes"}', "yes"),
    ('{"answer": "yes"}', "yes"),
    ("yes", "yes"),
    ("NO!", "no"),
    ("是的", "unparsed"),
    ("没有", "unparsed"),
    ("", "unparsed"),
    ("   \n", "unparsed"),
    ("I see yes-men and no windows.", "unparsed"),
    ("**Yes**, the reflection is there.", "yes"),
    ("The answer is no.", "no"),
    ('{"answer": "Yes", "explanation": "cut', "unparsed"),
    ('{"explanation": "yes"}', "unparsed"),
    ('{"answer": 1, "explanation": "a number for a word"}', "unparsed"),
]


@pytest.mark.parametrize(("reply", "expected"), REPLIES)
def test_e05_the_last_explicit_verdict_counts_and_thinking_does_not(reply: str, expected: str) -> None:
    with judge_server(always=Reply(text=reply)) as server:
        verdict = judge_of(server).answer(PICTURE, QUESTION)
    assert verdict.kind.value == expected
    assert verdict.raw == reply


def test_e05_the_table_of_replies_has_twenty() -> None:
    assert len(REPLIES) == len({text for text, _ in REPLIES}) == 20


def test_p07_a_no_that_speaks_of_yes_is_no_yes() -> None:
    with judge_server(always=Reply(text="No, the answer is not yes")) as server:
        verdicts = [judge_of(server, protocol=name).answer(PICTURE, QUESTION) for name in ("strict", "official")]
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.NO, VerdictKind.NO]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_refusal_is_a_verdict_of_its_own(api: str) -> None:
    policy = failing(400, "The picture was filtered", "content_filter")
    with judge_server([Reply(refusal="I cannot."), policy] * 2) as server:
        strict = [judge_of(server, api=api).answer(PICTURE, QUESTION) for _ in range(2)]
        official = [judge_of(server, api=api, protocol="official").answer(PICTURE, QUESTION) for _ in range(2)]
    assert [verdict.kind for verdict in strict + official] == [VerdictKind.REFUSED] * 4
    assert strict[0].raw == "I cannot."
    assert [StrictProtocol().is_correct(verdict, "No") for verdict in strict] == [None, None]
    assert [OfficialProtocol().is_correct(verdict, "No") for verdict in official] == [False, False]


@pytest.mark.parametrize("code", [400, 500])
def test_a_call_that_fails_among_others_is_an_error_and_officially_wrong(code: int) -> None:
    failed = [failing(400)] if code == 400 else [*[failing(500)] * 2, Reply()]  # the last answers the first one again
    with judge_server([Reply(), *failed] * 2) as server:
        verdicts = []
        for name in ("strict", "official"):
            judge = judge_of(server, protocol=name, max_failures=2)
            judge.answer(PICTURE, QUESTION)
            verdicts.append(judge.answer(PICTURE, QUESTION))
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.ERROR, VerdictKind.ERROR]
    assert f"HTTP {code}" in verdicts[0].explanation
    assert StrictProtocol().is_correct(verdicts[0], "No") is None
    assert verdicts[1].answer == "Error: all"
    assert OfficialProtocol().is_correct(verdicts[1], "No") is False


def test_e04_a_server_that_refuses_everything_is_asked_once_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_queue, "_FIRST_ALONE_S", 30.0)  # whatever else the machine does
    refusal = replace(failing(400, "At most 0 image(s) may be provided"), delay_s=2.0)  # until all have come
    with judge_server(always=refusal) as server:
        judge = judge_of(server, concurrency=20)

        def ask(_: int) -> str:
            with pytest.raises(JudgeRefusesAll) as error:
                judge.answer(PICTURE, QUESTION)
            return str(error.value)

        with ThreadPoolExecutor(20) as pool:
            said = set(pool.map(ask, range(20)))
    assert len(server.asked) == 1
    assert len(said) == 1
    assert "At most 0 image(s)" in said.pop()


def test_a_spent_budget_is_no_verdict() -> None:
    with judge_server() as server:
        judge = judge_of(server, max_requests=1)
        judge.answer(PICTURE, QUESTION)
        with pytest.raises(JudgeUnavailable, match="max_requests"):
            judge.answer(PICTURE, QUESTION)
    assert judge.usage["num_requests"] == 1
    assert judge.usage["models"] == {"seer-2026": 1}


def test_nothing_is_sent_about_what_cannot_be_shown() -> None:
    outside = JudgeQuestion("Is it there?", Box(2000.0, 2000.0, 10.0, 10.0))
    with judge_server() as server:
        judge = judge_of(server)
        verdicts = [judge.answer(None, QUESTION), judge.answer(PICTURE, outside)]
        assert not server.asked
        judge_of(server, protocol="official").answer(None, QUESTION)
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.ERROR] * 2
    with Image.open(io.BytesIO(server.asked[0].picture)) as white:
        assert white.size == (512, 512)


def test_an_answer_is_paid_for_once(tmp_path: Path) -> None:
    with judge_server([Reply(text=NO)]) as server:
        first = judge_of(server, cache_folder=str(tmp_path)).answer(PICTURE, QUESTION)
        again = judge_of(server, cache_folder=str(tmp_path)).answer(PICTURE, QUESTION)
        assert (first.kind, again) == (VerdictKind.NO, first)
        assert len(server.asked) == 1
        others = [{"temperature": 0.0}, {"protocol": "official"}, {"model": "other"}, {"api": "responses"}]
        for other in others:
            judge_of(server, cache_folder=str(tmp_path), **other).answer(PICTURE, QUESTION)
        judge_of(server, cache_folder=str(tmp_path)).answer(PICTURE + 1, QUESTION)
        judge_of(server, cache_folder=str(tmp_path)).answer(PICTURE, JudgeQuestion("Is it blue?", BOX))
    assert len(server.asked) == 1 + len(others) + 2


def test_only_answers_that_are_final_are_kept(tmp_path: Path) -> None:
    unclear = Reply(text="Hard to say.")
    with judge_server([unclear, unclear, Reply(refusal="no"), Reply(), failing(400), Reply()]) as server:
        official = judge_of(server, protocol="official", cache_folder=str(tmp_path))
        assert official.answer(PICTURE, QUESTION) == official.answer(PICTURE, QUESTION)
        assert len(server.asked) == 1
        strict = judge_of(server, cache_folder=str(tmp_path))
        kinds = [strict.answer(PICTURE, QUESTION).kind.value for _ in range(4)]
        assert kinds == ["unparsed", "refused", "yes", "yes"]
        assert len(server.asked) == 4
        kinds = [strict.answer(PICTURE, JudgeQuestion("Another?", BOX)).kind.value for _ in range(2)]
        assert kinds == ["error", "yes"]


def test_a_cache_that_cannot_be_used_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "answers.sqlite").write_bytes(b"no database" * 100)
    with judge_server() as server:
        judge = judge_of(server, cache_folder=str(tmp_path))
        assert [judge.answer(PICTURE, QUESTION).kind for _ in range(2)] == [VerdictKind.YES] * 2
    assert len(server.asked) == 2
    assert caplog.text.count("cannot be kept") == 1


def test_the_cache_holds_what_was_asked_in_words(tmp_path: Path) -> None:
    with judge_server() as server:
        judge = judge_of(server, cache_folder=str(tmp_path))
        judge.answer(PICTURE, QUESTION)
    with sqlite3.connect(tmp_path / "answers.sqlite") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        (row,) = database.execute("SELECT judge_id, prompt, text, model, num_input_tokens FROM answers").fetchall()
    assert row == (judge.judge_id, json.dumps([QUESTION.text + INSTRUCTION]), YES, "seer-2026", 1000)


def test_the_judge_names_everything_that_changes_an_answer() -> None:
    def name(**other: object) -> str:
        settings = {"model": "m", "base_url": "http://host/v1", "temperature": 0.0} | other
        return OpenAICompatibleJudge(**settings).judge_id  # type: ignore[arg-type]

    others = [
        {"model": "n"}, {"base_url": "http://other/v1"}, {"api": "responses"}, {"protocol": "strict"},
        {"temperature": 1.0}, {"top_p": 0.5}, {"max_tokens": 9}, {"stop": ["#"]}, {"reasoning_effort": "low"},
        {"protocol": "strict", "box_unit": "thousandths"},
    ]  # fmt: skip
    names = {name(), *(name(**other) for other in others)}
    assert len(names) == 1 + len(others)
    assert name() == name(concurrency=3, timeout_s=1.0, patience_s=1.0, max_requests=9, cache_folder="/x")
    assert all(word in name() for word in ("m@http://host/v1", "chat", "official-qwen", "temperature=0.0"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"api": "grpc"}, "judge.api is 'grpc'"),
        ({"protocol": "lenient"}, "judge.protocol is 'lenient'"),
        ({"box_unit": None}, "without a stated unit"),
        ({"box_unit": "thousandths", "protocol": "official"}, "judge.protocol=strict"),
        ({"concurrency": 0}, "judge.concurrency is 0"),
        ({"base_url": "http://host:99999/v1"}, "with a port of 1 to 65535"),
        ({"api_key_env": "NOT_THERE"}, "NOT_THERE, which is not set"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OpenAICompatibleJudge(**({"model": "m", "base_url": "http://host/v1"} | wrong))  # type: ignore[arg-type]


HALF = json.loads('"bad \\ud83d"')


def test_half_a_character_in_a_reply_is_kept_as_it_came(tmp_path: Path) -> None:
    text = json.dumps({"answer": "No", "explanation": HALF}, ensure_ascii=False)
    with judge_server(always=Reply(text=text)) as server:
        for protocol in ("official", "strict"):
            judge = judge_of(server, protocol=protocol, cache_folder=str(tmp_path))
            first, again = judge.answer(PICTURE, QUESTION), judge.answer(PICTURE, QUESTION)
            assert (first.kind, first.raw, again) == (VerdictKind.NO, text, first)
    assert len(server.asked) == 2


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_question_with_half_a_character_is_an_error_and_officially_wrong(api: str) -> None:
    with judge_server() as server:
        for protocol, correct in (("official", False), ("strict", None)):
            judge = judge_of(server, api=api, protocol=protocol)
            verdict = judge.answer(PICTURE, JudgeQuestion(HALF, BOX))
            assert verdict.kind is VerdictKind.ERROR
            assert judge.protocol.is_correct(verdict, "Yes") is correct
            assert judge.answer(PICTURE, QUESTION).kind is VerdictKind.YES
