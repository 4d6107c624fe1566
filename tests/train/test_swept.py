"""F07 and F04: what a sweep's agent gave is what the config holds, and what a tracker shows."""

from pathlib import Path

import pytest
import wandb
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args
from wandb.sdk.lib import config_util

from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.swept import agent_values, check_swept, check_tracked, exact_overrides
from physedit.train.tracker import Wandb

PAIRS = ("experiment=smoke", "data=pairs", "data.path=x", "data.source=a", "data.target=b")
INSTRUCTION = "Add a lamp, then: dim it (half) = done 'now'"


def as_agent(values: dict[str, object]) -> list[str]:
    """Returns the arguments that wandb's agent hands over."""
    printed: list[str] = create_sweep_command_args({"args": {k: {"value": v} for k, v in values.items()}})[
        "args_no_hyphens"
    ]
    return printed


def test_values_of_an_agent_arrive_exactly():
    values: dict[str, object] = {
        "data.instruction": INSTRUCTION,
        "data.limit": None,
        "data.streaming": True,
        "data.references": ["a b", "c"],
        "optimizer.lr": "1e-4",
        "ema_decay": "null",
        "data.group": "a=b",
    }
    given = exact_overrides([*PAIRS, *as_agent(values)], values)
    config = compose_config(given)
    check_swept(config, given, values)
    assert config.data.instruction == INSTRUCTION
    assert (config.data.limit, config.data.streaming, config.optimizer.lr, config.ema_decay) == (None, True, 1e-4, None)
    assert list(config.data.references) == ["a b", "c"]
    assert config.data.group == "a=b"
    assert exact_overrides(given, values) == given  # the ranks of a launch do it again


def test_without_help_the_instruction_stops_the_run():
    with pytest.raises(ConfigError):
        compose_config([*PAIRS, *as_agent({"data.instruction": INSTRUCTION})])


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ([], {"optimizer.lr": 5e-3}),
        (["seed=3", "seed=4"], {"seed": 3}),
        ([], {"data": "pica100k"}),
        (["data=pica100k", "data=mira400k"], {"data": "pica100k"}),
        ([], {"adapter.lora_rank": 4}),
        (["adapter.use_dora=true"], {"adapter.use_dora": False}),
    ],
)
def test_a_config_without_the_swept_value_is_refused(given: list[str], values: dict[str, object]):
    config = compose_config(["experiment=smoke", *given])
    with pytest.raises(ConfigError, match="The sweep gives this run"):
        check_swept(config, given, values)


def test_groups_and_whole_numbers_that_agree_are_no_difference():
    given = ["data=pica100k", "seed=3", "run_name=7"]
    check_swept(compose_config(["experiment=smoke", *given]), given, {"data": "pica100k", "seed": 3.0, "run_name": 7})


def test_an_agents_file_that_is_gone_is_named(tmp_path: Path):
    assert agent_values({}) == {}
    assert agent_values({"WANDB_SWEEP_ID": "s"}) == {}
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        agent_values({"WANDB_SWEEP_ID": "s", "WANDB_SWEEP_PARAM_PATH": str(tmp_path / "gone.yaml")})


def test_a_tracker_that_shows_another_value_stops_the_run():
    config = {"optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]}, "seed": 0, "data": {"path": "x"}}
    check_tracked({**config, "optimizer.lr": 1e-3, "data": "pica100k", "_wandb": {}}, config)
    for shown in ({**config, "optimizer.lr": 5e-3}, {"seed": 3}, {"optimizer": {"lr": 1e-4}}):
        with pytest.raises(ConfigError, match="The tracker shows"):
            check_tracked(shown, config)


def test_wandb_with_a_sweeps_value_that_the_run_does_not_use_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "sweep.yaml"
    config_util.save_config_file_from_dict(str(path), {"seed": {"value": 3}})
    for name, value in {"SWEEP_ID": "s1", "RUN_ID": "abc", "SWEEP_PARAM_PATH": str(path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb.teardown()
    with pytest.raises(ConfigError, match="The tracker shows seed=3, but this run uses 0"):
        Wandb(mode="offline", project="test").start(tmp_path, "run", {"seed": 0})
    wandb.teardown()  # or what it has read of the sweep stays in this process
    assert (tmp_path / "wandb" / "run_id").read_text() == "abc"
