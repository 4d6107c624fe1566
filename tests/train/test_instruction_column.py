"""F14: a data set with an instruction column needs no prompt beside it."""

import pytest

from physedit.train.compose import compose_config
from physedit.train.config import ConfigError

PAIRS = ("experiment=smoke", "data=pairs", "data.path=x", "data.source=before", "data.target=after")


def test_an_instruction_column_is_enough():
    assert compose_config([*PAIRS, "data.instruction=prompt"]).data.instruction == "prompt"
    for shipped in ("pica100k", "mira400k"):  # these know their columns
        assert compose_config(["experiment=smoke", f"data={shipped}"]).data.path


def test_without_one_the_setting_is_named_and_nothing_else():
    with pytest.raises(ConfigError) as refused:
        compose_config(PAIRS)
    assert str(refused.value) == (
        "No value for data.instruction. Give it on the command line, for example data.instruction=VALUE."
    )
