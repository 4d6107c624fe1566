"""F04: a value reaches the config exactly, whatever signs it holds."""

import random

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from physedit.launch.overrides import key_of, override, quoted, swept
from physedit.launch.plan import LaunchError
from physedit.train.compose import compose_config

INSTRUCTION = "Move the lamp, slowly: (left = right) 50% \"off\" 'now' {a} [b] \\ #1 café ~/x"
PAIRS = ("experiment=smoke", "data=pairs", "data.path=x", "data.source=a", "data.target=b")


def read(text: str) -> object:
    """Returns the value of ``k`` as a composed and resolved config holds it."""
    value = OverridesParser.create().parse_override(text).value()
    return OmegaConf.to_container(OmegaConf.create({"k": value}), resolve=True)["k"]  # type: ignore[call-overload,index]


@pytest.mark.parametrize("text", [INSTRUCTION, "a,b", "a b", "a:b", "a=b", "(a)", "", " ", "null", "1e-4", "$x", "\\"])
def test_an_instruction_reaches_the_config_exactly(text: str):
    config = compose_config([*PAIRS, override("data.instruction", text)])
    assert OmegaConf.to_container(config, resolve=True)["data"]["instruction"] == text  # type: ignore[call-overload,index]


def test_any_text_is_read_back_exactly():
    source = random.Random(0)
    signs = ["\\", "'", '"', "}", "{", " ", ",", ":", "=", "(", ")", "a", "é", "\n", "[", "]", "#", "~", "1"]
    for _ in range(3000):
        text = "".join(source.choices(signs, k=source.randrange(9)))
        assert read(override("k", text)) == text


@pytest.mark.parametrize(
    "value", [None, True, False, 3, -2, 1e-05, 0.1, 1e300, [1, "a, b", None], {"a": 1.5, "b": ["x=y"]}, [], "True"]
)
def test_other_values_keep_their_kind(value: object):
    found = read(override("k", value))
    assert found == value
    assert type(found) is type(value)


def test_text_of_a_sweep_that_looks_like_a_number_or_null_is_one():
    assert [read(swept("k", text)) for text in ("1e-4", "null", "true", "-3", "a b")] == [1e-4, None, True, -3, "a b"]


def test_values_without_a_form_are_refused():
    for value in ({"a b": 1}, object(), "a ${b}"):
        with pytest.raises(LaunchError, match="cannot"):
            quoted(value)


def test_the_key_of_an_override():
    keys = [key_of(text) for text in ("a.b=1", "+a=1", "++a=x=y", "~a", "data@data.members.x=pairs", "train")]
    assert keys == ["a.b", "a", "a", "a", "data", "train"]
