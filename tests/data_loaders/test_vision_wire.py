"""What goes over the wire in both forms of request, budgets, and where a key may stand."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.judge_server import YES, JudgeServer, Reply, failing, judge_server

from physedit.data_loaders.vision_client import VisionClient
from physedit.data_loaders.vision_settings import (
    VisionApi,
    VisionBudgetSpent,
    VisionRequestError,
    VisionSettings,
    VisionUnavailable,
)
from physedit.data_loaders.vision_wire import Picture, VisionMessage

PICTURE = Picture(b"\xff\xd8", "image/jpeg")
APIS = [VisionApi.CHAT, VisionApi.RESPONSES]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}
PRICES = {"usd_per_million_input": 1000.0, "usd_per_million_output": 10000.0}
"""A reply of the server's 1000 and 100 tokens costs 2 USD."""


def client_of(server: JudgeServer, **settings) -> VisionClient:
    return VisionClient(VisionSettings("seer", base_url=server.base_url, longest_wait_s=0.02, **settings))


@pytest.mark.parametrize("api", APIS)
def test_text_and_counts_come_out_with_the_models_name(api):
    with judge_server() as server:
        client = client_of(server, api=api)
        reply = client.ask([VisionMessage("user", "What?", (PICTURE,))])
    assert (reply.text, reply.refusal, reply.is_cut, reply.model) == (YES, None, False, "seer-2026")
    assert (client.usage.num_input_tokens, client.usage.num_output_tokens) == (1000, 100)
    assert client.usage.models == {"seer-2026": 1}


@pytest.mark.parametrize("is_text_first", [True, False])
@pytest.mark.parametrize("api", APIS)
def test_several_text_parts_stand_before_or_after_the_picture(api, is_text_first):
    with judge_server() as server:
        client_of(server, api=api).ask([VisionMessage("user", ("a", "b"), (PICTURE,), is_text_first)])
    kinds = [part["type"].removeprefix("input_") for part in server.asked[0].parts]
    pictures = ["image_url" if api is VisionApi.CHAT else "image"]
    assert kinds == ["text", "text", *pictures] if is_text_first else [*pictures, "text", "text"]
    assert server.asked[0].texts == ["a", "b"]
    assert server.asked[0].picture == b"\xff\xd8"


def test_every_parameter_of_a_chat_reaches_the_server():
    given = {"temperature": 0.0, "top_p": 1.0, "stop": ("#",), "reasoning_effort": "low", "max_tokens": 7}
    with judge_server() as server:
        client_of(server, response_schema=SCHEMA, **given).ask([VisionMessage("user", "What?")])
    body = server.asked[0].body
    assert {name: body[name] for name in given} == {**given, "stop": ["#"]}
    assert body["response_format"]["json_schema"] == {"name": "answer", "schema": SCHEMA, "strict": True}


def test_every_parameter_of_a_response_reaches_the_server():
    settings = {"api": VisionApi.RESPONSES, "temperature": 0.5, "top_p": 0.9, "reasoning_effort": "low"}
    with judge_server() as server:
        client_of(server, response_schema=SCHEMA, max_tokens=7, **settings).ask([VisionMessage("user", "What?")])
    body = server.asked[0].body
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (0.5, 0.9, 7)
    assert body["reasoning"] == {"effort": "low"}
    assert body["text"]["format"] == {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize("api", APIS)
def test_what_is_not_set_is_not_sent(api):
    with judge_server() as server:
        client_of(server, api=api, max_tokens=None).ask([VisionMessage("user", "What?")])
    assert server.asked[0].body.keys() - {"stream"} == {"model", "messages" if api is VisionApi.CHAT else "input"}


@pytest.mark.parametrize("api", APIS)
def test_refusals_cut_answers_and_spoilt_replies_are_told_apart(api):
    script = [
        Reply(refusal="I cannot."), Reply(is_cut=True), Reply(cut="connection"), Reply(cut="json"), Reply(status=500),
    ]  # fmt: skip
    with judge_server(script) as server:
        refused, cut, good = (client_of(server, api=api).ask([VisionMessage("user", "What?")]) for _ in range(3))
    assert (refused.text, refused.refusal) == ("", "I cannot.")
    assert cut.is_cut
    assert (good.text, good.is_cut) == (YES, False)
    assert len(server.asked) == 6


def test_a_server_that_fails_at_one_question_is_asked_so_often():
    started = time.monotonic()
    with judge_server(always=failing(500)) as server, pytest.raises(VisionUnavailable) as error:
        client_of(server, max_failures=3).ask([VisionMessage("user", "What?")])
    assert len(server.asked) == 3
    assert started < error.value.last_sent_s < time.monotonic()


def test_threads_together_keep_the_budget_of_requests():
    with judge_server() as server:
        client = client_of(server, max_requests=5, max_parallel=8)

        def ask(_: int) -> bool:
            try:
                client.ask([VisionMessage("user", "What?")])
            except VisionBudgetSpent:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            answered = list(pool.map(ask, range(20)))
    assert len(server.asked) == sum(answered) == 5


def test_no_request_is_sent_beyond_the_budget_of_money():
    with judge_server() as server:
        client = client_of(server, max_cost_usd=5.0, **PRICES)
        for _ in range(3):
            client.ask([VisionMessage("user", "What?")])
        with pytest.raises(VisionBudgetSpent, match=r"6\.00 USD of max_cost_usd=5"):
            client.ask([VisionMessage("user", "What?")])
    assert client.usage.cost_usd(client.settings) == 6.0
    with pytest.raises(VisionRequestError, match="usd_per_million_input"):
        VisionSettings("seer", max_cost_usd=5.0)


def test_settings_without_effect_and_addresses_that_are_none_are_refused():
    with pytest.raises(VisionRequestError, match="stop has no effect"):
        VisionSettings("seer", api=VisionApi.RESPONSES, stop=("#",))
    with pytest.raises(VisionRequestError, match="is no address"):
        VisionSettings("seer", base_url="localhost:8000/v1")


@pytest.mark.parametrize(
    "where",
    [{"api_key_env": "sk-SECRET"}, {"base_url": "http://me:SECRET@host/v1"}, {"base_url": "http://h/v1?key=SECRET"}],
)
def test_a_key_that_stands_in_the_settings_is_refused_and_not_quoted(where):
    with pytest.raises(VisionRequestError) as error:
        VisionSettings("seer", **where)
    assert "SECRET" not in str(error.value)


def test_a_key_that_the_server_quotes_is_blotted_out(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", "sk-SECRET")
    script = [
        failing(429, "sk-SECRET is busy"),
        Reply(text="the key is sk-SECRET"),
        failing(401, "wrong key sk-SECRET"),
    ]
    with judge_server(script) as server:
        client = client_of(server, api_key_env="MY_KEY")
        assert client.ask([VisionMessage("user", "What?")]).text == "the key is [key]"
        with pytest.raises(VisionRequestError, match=r"wrong key \[key\]") as error:
            client.ask([VisionMessage("user", "What?")])
    assert error.value.status == 401
    assert server.asked[0].headers["authorization"] == "Bearer sk-SECRET"
    assert "sk-SECRET" not in caplog.text
