"""What of a model's reply becomes an instruction."""

import json

import pytest
from tests.support.instruction_writer import FINE, GOOD
from tests.support.judge_server import Reply, judge_server
from tests.support.stand_ins import png

from physedit.data_loaders.videos.instructions import (
    NoInstruction,
    WrittenInstruction,
    num_tokens,
    outcome_from_json,
    outcome_to_json,
    write_instruction,
)
from physedit.data_loaders.videos.reasons import Reason
from physedit.data_loaders.vision_client import VisionClient
from physedit.data_loaders.vision_settings import VisionSettings

FIELDS = json.loads(GOOD)


def asked(*script: Reply, always: Reply = FINE):
    with judge_server(script, always) as server:
        client = VisionClient(VisionSettings("seer", base_url=server.base_url))
        outcome = write_instruction(client, png(10, 1200, 900), png(200, 1200, 900), "")
    assert outcome_from_json(json.loads(json.dumps(outcome_to_json(outcome)))) == outcome
    return outcome, server.asked


def changed(**fields) -> Reply:
    return Reply(text=json.dumps({**FIELDS, **fields}))


@pytest.mark.parametrize(
    "text", [GOOD, f"```json\n{GOOD}\n```", f"<think>Hm. {{}}</think>\nHere it is: {GOOD} I hope this helps."]
)
def test_an_answer_is_taken_in_any_wrapping(text):
    outcome, questions = asked(Reply(text=text))
    assert isinstance(outcome, WrittenInstruction)
    assert (outcome.superficial, outcome.law, outcome.operation) == (FIELDS["superficial"], "Causality", "move")
    assert len(questions) == 1
    assert questions[0].num_pictures == 2


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (Reply(text="The ball rolls."), "no JSON object"),
        (Reply(text=GOOD[:-30]), "no JSON object"),
        (Reply(text=GOOD, is_cut=True), "cut off"),
        (Reply(text=""), "no JSON object"),
        (changed(explicit="  "), "explicit holds no text"),
        (changed(superficial=["Roll", "it"]), "superficial holds no text"),
        (changed(superficial="roll " * 20), "20 tokens, but must have fewer than 20"),
        (changed(intermediate="roll " * 128), "fewer than 128"),
        (changed(explicit="roll " * 300), "fewer than 256"),
        (changed(law="Gravity"), "law is 'Gravity'"),
        (changed(law=["Local"]), "law is"),
        (changed(operation=None), "operation is None"),
    ],
)
def test_a_bad_answer_is_asked_for_again_with_what_was_wrong(bad, complaint):
    outcome, questions = asked(bad)
    assert isinstance(outcome, WrittenInstruction)
    assert outcome.num_requests == 2
    assert outcome.num_input_tokens == 2000
    conversation = questions[1].body["messages"]
    assert [message["role"] for message in conversation] == ["user", "assistant", "user"]
    assert complaint in conversation[2]["content"]


def test_three_bad_answers_are_enough():
    outcome, questions = asked(always=Reply(text="No idea."))
    assert outcome == NoInstruction(Reason.INSTRUCTION_UNUSABLE, "No idea.", 3, 3000, 300)
    assert len(questions) == 3


def test_a_refusal_is_final():
    outcome, questions = asked(Reply(refusal="I cannot help with that."))
    assert isinstance(outcome, NoInstruction)
    assert (outcome.reason, outcome.said) == (Reason.INSTRUCTION_REFUSED, "I cannot help with that.")
    assert len(questions) == 1


def test_no_law_is_an_answer():
    outcome, _ = asked(changed(law=None))
    assert isinstance(outcome, WrittenInstruction)
    assert outcome.law is None


def test_tokens_are_words_and_marks():
    assert num_tokens("Move the cup, please.") == 6
    assert num_tokens("") == 0
