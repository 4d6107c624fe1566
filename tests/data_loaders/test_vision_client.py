"""The client of vision-language models, against a server that misbehaves as real ones do."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from tests.support.instruction_writer import FINE, GOOD
from tests.support.judge_server import JudgeServer, Reply, judge_server

from physedit.data_loaders.json_reply import last_json_object
from physedit.data_loaders.vision_client import VisionClient
from physedit.data_loaders.vision_retry import wait_hint_s
from physedit.data_loaders.vision_settings import VisionRequestError, VisionSettings, VisionUnavailable
from physedit.data_loaders.vision_wire import Picture, VisionMessage

QUESTION = [VisionMessage("user", "What is it?", (Picture(b"\xff\xd8", "image/jpeg"), Picture(b"x", "image/png")))]
BUSY = {"message": "slow down", "code": "rate_limit_exceeded"}


def client_of(server: JudgeServer, **settings) -> VisionClient:
    return VisionClient(VisionSettings("seer", base_url=server.base_url, longest_wait_s=0.05, **settings))


def test_pictures_and_text_go_in_and_text_and_counts_come_out():
    with judge_server(always=FINE) as server:
        client = client_of(server, max_tokens=77)
        reply = client.ask([VisionMessage("system", "Be brief."), *QUESTION, VisionMessage("assistant", "Hm.")])
    assert (reply.text, reply.refusal, reply.is_cut) == (GOOD, None, False)
    assert (reply.num_input_tokens, reply.num_output_tokens) == (1000, 100)
    assert (client.usage.num_requests, client.usage.num_input_tokens) == (1, 1000)
    (asked,) = server.asked
    assert asked.body["model"] == "seer"
    assert asked.body["max_tokens"] == 77
    assert "temperature" not in asked.body
    assert [message["role"] for message in asked.body["messages"]] == ["system", "user", "assistant"]
    urls = [part["image_url"]["url"] for part in asked.body["messages"][1]["content"][:2]]
    assert urls == ["data:image/jpeg;base64,/9g=", "data:image/png;base64,eA=="]


def test_a_busy_server_is_asked_again_after_the_wait_it_names():
    with judge_server([Reply(status=429, error=BUSY, headers={"Retry-After": "0.3"})] * 3, FINE) as server:
        client = client_of(server)
        assert client.ask(QUESTION).text == GOOD
    times = [asked.at_s for asked in server.asked]
    assert len(times) == 4
    assert all(later - sooner >= 0.3 for sooner, later in pairwise(times))
    assert client.usage.num_retries == 3


def test_all_threads_keep_the_wait_and_the_limit():
    with judge_server(
        [Reply(status=429, error=BUSY, headers={"Retry-After": "0.5"})], Reply(text=GOOD, delay_s=0.05)
    ) as server:
        client = client_of(server, max_parallel=2)
        client.ask(QUESTION)
        with ThreadPoolExecutor(6) as pool:
            server.script.append(Reply(status=429, error=BUSY, headers={"Retry-After": "0.5"}))
            replies = list(pool.map(lambda _: client.ask(QUESTION), range(6)))
    assert [reply.text for reply in replies] == [GOOD] * 6
    assert server.most_at_once <= 2
    refused_at = server.asked[2].at_s
    # One question may have been under way then, and its thread have sent another before the refusal was read.
    # Without the common wait it would send all four.
    assert sum(refused_at < asked.at_s < refused_at + 0.45 for asked in server.asked) <= 2


@pytest.mark.parametrize("status", [408, 500, 503])
def test_a_passing_failure_is_repeated(status):
    with judge_server([Reply(status=status, error={"message": "oops"})] * 2, FINE) as server:
        assert client_of(server).ask(QUESTION).text == GOOD
    assert len(server.asked) == 3


def test_patience_ends():
    with judge_server(always=Reply(status=503, error={"message": "loading the model"})) as server:
        started = time.monotonic()
        with pytest.raises(VisionUnavailable, match="loading the model"):
            client_of(server, patience_s=2.0).ask(QUESTION)
    assert 1.9 < time.monotonic() - started < 20
    assert len(server.asked) > 1
    overloaded = Reply(status=429, error=BUSY, headers={"Retry-After": "4000"})
    with judge_server([overloaded], FINE) as server, pytest.raises(VisionUnavailable, match="4000 s"):
        client_of(server).ask(QUESTION)


def test_a_server_that_is_away_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        settings = VisionSettings("seer", base_url=url, patience_s=0.2, longest_wait_s=0.05)
        with pytest.raises(VisionUnavailable, match=rf"seer at {url}.*no connection"):
            VisionClient(settings).ask(QUESTION)
        with pytest.raises(VisionRequestError, match=rf"Nobody answers for seer at {url}"):
            VisionClient(settings).require_server()


def test_a_server_without_a_list_of_models_is_there_and_is_not_asked():
    with judge_server(always=FINE) as server:
        client = client_of(server)
        client.require_server()
        assert (server.asked, client.usage.num_requests) == ([], 0)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "At most 1 image(s) may be provided in one request.", "code": None}),
        (401, {"message": "Incorrect API key", "code": "invalid_api_key"}),
        (404, {"message": "The model `seer` does not exist", "code": "model_not_found"}),
        (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}),
    ],
)
def test_what_cannot_succeed_is_asked_once_and_says_what_the_server_said(status, error):
    always = Reply(status=status, error=error)
    with judge_server(always=always) as server, pytest.raises(VisionRequestError) as refused:
        client_of(server).ask(QUESTION)
    assert len(server.asked) == 1
    assert error["message"] in str(refused.value)
    assert f"HTTP {status}" in str(refused.value)


def test_an_address_that_serves_pages_is_said_to_be_wrong():
    page = Reply(raw="<html>Hello</html>", headers={"Content-Type": "text/html"})
    with judge_server(always=page) as server, pytest.raises(VisionRequestError, match=r"<html>Hello.*/v1"):
        client_of(server).ask(QUESTION)


def test_an_answer_that_is_none_is_asked_for_again():
    with judge_server([Reply(raw='{"choices": []}'), Reply(raw='{"error": "busy"}'), Reply(raw="{")], FINE) as server:
        assert client_of(server).ask(QUESTION).text == GOOD
    assert len(server.asked) == 4


def test_a_refusal_is_neither_an_answer_nor_an_error():
    policy = {"message": "The prompt was filtered", "code": "content_filter"}
    script = [Reply(refusal="I cannot."), Reply(status=400, error=policy), Reply(text="", finish="content_filter")]
    with judge_server(script, FINE) as server:
        replies = [client_of(server).ask(QUESTION) for _ in range(3)]
    assert [reply.text for reply in replies] == ["", "", ""]
    assert [reply.refusal for reply in replies] == [
        "I cannot.",
        "HTTP 400: The prompt was filtered",
        "the server's content filter",
    ]


def test_a_key_goes_only_where_it_was_meant_to(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "openais-own")
    monkeypatch.setenv("MY_KEY", "mine")
    with judge_server(always=FINE) as server:
        client_of(server).ask(QUESTION)
        client_of(server, api_key_env="MY_KEY").ask(QUESTION)
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer none", "Bearer mine"]
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(VisionRequestError, match="OPENAI_API_KEY"):
        VisionClient(VisionSettings("gpt-x"))


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"model": ""}, {"timeout_s": 0.0}, {"max_parallel": 0}):
        with pytest.raises(VisionRequestError, match="above 0"):
            VisionSettings(**{"model": "seer", **wrong})


def test_wait_hints():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert wait_hint_s({"retry-after": "7"}) == 7
    assert wait_hint_s({"retry-after-ms": "250", "retry-after": "7"}) == 0.25
    assert wait_hint_s({"retry-after": later}) == pytest.approx(30, abs=2)
    assert [wait_hint_s(h) for h in ({}, {"retry-after": "soon"}, {"retry-after-ms": "?"})] == [None] * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure!\n```json\n{"a": {"b": 2}}\n```', {"a": {"b": 2}}),
        ('<think>{"a": 0}</think>{"a": 1}', {"a": 1}),
        ('{"a": 1} or rather {"a": 2}', {"a": 2}),
        ('{"a": 1, "b": "cut o', None),
        ("[1, 2]", None),
        ("no", None),
        ("", None),
        ('<think>thinking and never done {"a": 1}', None),
        ("{" * 50000, None),
    ],
)
def test_the_last_json_object_of_a_reply(text, expected):
    assert last_json_object(text) == expected
