"""F03: the shipped sweeps, started as wandb's agent starts them, compose to runs with the swept values."""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from physedit.launch.plan import LaunchError
from physedit.launch.sweep_file import SWEEPS, read_sweep_file
from physedit.launch.sweep_search import next_parameters, num_trials
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError, options
from physedit.train.sweeping import SweepRequest, known_trials, plan_sweep
from physedit.train.swept import check_swept, exact_overrides

NAMES = ("data_scale", "demo", "kontext_rank_lr", "pica100k_vs_mira400k", "prompt_level_mix", "qwen_rank_lr")


def agent_command(content: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns the command of a trial. Source: wandb/wandb_agent.py, Agent._command_run; its parts are wandb's own."""
    command = create_sweep_command(list(content["command"]))
    filled = create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})
    filled |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [content["program"]]}
    built: list[str] = []
    for part in map(str, command):
        built += filled.get(part[2:-1]) or [] if part.startswith("${") and part.endswith("}") else [part]
    return built


def grid(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spaces = [each.get("values", [each.get("value")]) for each in content["parameters"].values()]
    for values in itertools.product(*spaces):
        yield dict(zip(content["parameters"], values, strict=True))


def test_these_sweeps_are_shipped():
    assert tuple(sorted(path.stem for path in SWEEPS.glob("*.yaml"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_sweep_as_the_agent_starts_it(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_RUN_ID", "abc123")
    content = yaml.safe_load((SWEEPS / f"{name}.yaml").read_text())  # as wandb reads it
    trials = list(grid(content))
    assert len(trials) == num_trials(read_sweep_file(SWEEPS / f"{name}.yaml"), None) > 1
    for values in trials:
        command = agent_command(content, values)
        assert command[:3] == ["/usr/bin/env", "physedit", "train"]
        given = command[3:]
        config = compose_config(given)
        check_swept(config, given, values)
        assert exact_overrides(given, values) == given  # nothing in them needs quotes, with or without the agent's file
        assert (config.run_name, config.output_root) == ("abc123", f"runs/sweeps/{name}")
        assert config.tracker.mode == "online"
        measured_by = {str(hook.name) for hook in config.eval.values()}
        assert content["metric"]["name"].split("/")[0] in measured_by, "wandb orders by a number that no run has"
        for key, value in values.items():
            assert value in options(key) or OmegaConf.select(config, key) == value


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_sweep_has_the_same_commands_here(name: str):
    content = yaml.safe_load((SWEEPS / f"{name}.yaml").read_text())
    sweep = read_sweep_file(SWEEPS / f"{name}.yaml")
    for number, values in enumerate(grid(content)):
        assert next_parameters(sweep, number, 0, ()) == values
        assert sweep.argv(values, "python") == agent_command(content, values)


def test_here_a_trial_has_its_own_folder_and_no_server():
    plan = plan_sweep(SweepRequest(SWEEPS / "demo.yaml", ("seed=1",)))
    trial, values = known_trials(plan)[1]
    settings = "experiment=demo num_steps=250 eval_steps=[] adapter.rank=8 optimizer.lr=0.004 seed=1"
    assert plan.command(trial, values) == [
        *("/usr/bin/env", "physedit", "train", *settings.split(), "output_root=runs/sweeps/demo", "run_name=trial_002")
    ]


def test_a_sweep_of_the_paper_compares_the_two_sets_by_the_same_settings():
    plan = plan_sweep(SweepRequest(SWEEPS / "pica100k_vs_mira400k.yaml"))
    ours, theirs = (
        OmegaConf.to_container(compose_config(plan.command(trial, values)[3:]), resolve=True)
        for trial, values in known_trials(plan)
    )
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    assert {key for key in ours if ours[key] != theirs[key]} == {"data", "run_name"}


def write(path: Path, **changed: object) -> Path:
    content: dict[str, object] = {
        "method": "grid",
        "parameters": {"optimizer.lr": {"values": [1e-3, 1e-4]}},
        "command": ["physedit", "train", "experiment=smoke", "tracker=none", "${args_no_hyphens}"],
    }
    path.write_text(yaml.safe_dump({key: value for key, value in (content | changed).items() if value is not None}))
    return path


BASE = ["physedit", "train", "experiment=smoke"]
REFUSED = [
    ({"command": BASE}, "without it no trial gets its values"),
    ({"command": [*BASE, "${args}"]}, "args_no_hyphens"),
    ({"command": [*BASE, "${args_no_hyphens}", "optimizer.lr=1.0"]}, "The sweep gives this run optimizer.lr"),
    ({"command": ["echo", "${args_no_hyphens}"]}, "trains nothing"),
    ({"command": [*BASE, "${args_no_hyphens}", "--multirun"]}, "--multirun"),
    ({"command": [*BASE, "${args_no_hyphens}", "${envvar:HOME}"]}, "envvar"),
    ({"command": None}, "command must be a list"),
    ({"parameters": {"optimizer.lrr": {"values": [1]}}}, "optimizer.lrr"),
    ({"parameters": {"num_steps": {"values": [4, 0]}}}, "trial_002"),
    ({"parameters": {"optimizer.lr": {"min": 1e-5, "max": 1e-3}}}, "method: grid"),
    ({"parameters": {"optimizer": {"parameters": {"lr": {"value": 1}}}}}, "optimizer.lr"),
    ({"parameters": {}}, "no setting"),
    ({"parameters": {"seed": {"values": [1], "probabilities": [0.5]}}}, "probabilities"),
    ({"parameters": {"seed": {"distribution": "beta", "min": 1, "max": 2}}}, "beta"),
    ({"method": "anneal"}, "anneal"),
    ({"method": "random"}, "--count"),
    ({"method": "bayes", "run_cap": 2}, "metric"),
    ({"method": "bayes", "run_cap": 2, "metric": {"name": "scenes/psnr"}}, "does not measure"),
    ({"early_terminate": {"type": "hyperband", "min_iter": 2}}, "metric"),
    ({"early_terminate": {"type": "envelope"}, "metric": {"name": "train/loss"}}, "envelope"),
    ({"controller": {"type": "local"}}, "controller"),
    ({"command": ["no-such-program", *BASE[1:], "${args_no_hyphens}"]}, "no-such-program"),
    ({"command": ["/usr/bin/env", "no-such-program", *BASE[1:], "${args_no_hyphens}"]}, "no-such-program"),
    *(({"name": name}, "plain folder name") for name in ("../../esc", "a\0b", "..", ["a"], "", True, "n" * 201)),
    (
        {"parameters": {"optimizer.lr": {"distribution": "log_uniform", "min": 1, "max": 1000}}, "method": "random"},
        "log_uniform_values",
    ),
    ({"parameters": {"optimizer.lr": {"min": 0, "max": 10**400}}, "method": "random"}, "optimizer.lr"),
    ({"parameters": {"seed": {"min": 1, "max": 10**11}}}, "--count"),
]


@pytest.mark.parametrize(("changed", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_sweep_that_cannot_be_is_refused_before_it_starts(tmp_path: Path, changed: dict[str, object], named: str):
    with pytest.raises(ValueError, match=named.replace("(", r"\(")) as refused:
        plan_sweep(SweepRequest(write(tmp_path / "mine.yaml", **changed), folder=tmp_path / "out"))
    assert type(refused.value).__module__.startswith("physedit.")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_is_refused_before_a_trial_is_composed(tmp_path: Path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="--out"):
            plan_sweep(SweepRequest(write(tmp_path / "mine.yaml"), ("no_such_key=1",), folder=folder))


IN_A_FOLDER = {
    "nothing": ([], "Shipped ones: launch/sweeps/data_scale.yaml"),
    "a sweep": (["b.yaml", "a.yml"], "Give one that is in it, such as .*a.yml"),
    "trials": (["trials.json", "a.yaml"], "To go on .* physedit compare"),
}


@pytest.mark.parametrize(("inner", "remedy"), IN_A_FOLDER.values(), ids=IN_A_FOLDER)
@pytest.mark.parametrize("option", ["--local", "--dry-run", None])
def test_a_folder_in_place_of_a_sweep_is_refused_with_what_to_give(
    tmp_path: Path, inner: list[str], remedy: str, option: str | None
):
    from typer.testing import CliRunner

    from physedit.train.cli import app

    for name in inner:
        (tmp_path / name).touch()
    refused = CliRunner().invoke(app, ["sweep", str(tmp_path), *([option] if option else [])]).exception
    assert isinstance(refused, LaunchError)
    assert re.search(f"is a folder, but a sweep is a yaml file. {remedy}", str(refused))


@pytest.mark.parametrize("content", ["", "# to be written\n", "null\n", "{}\n", "---\n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: str):
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(LaunchError, match=r"mine\.yaml is empty, but a sweep has method, .* launch/sweeps/demo\.yaml"):
        plan_sweep(SweepRequest(tmp_path / "mine.yaml", folder=tmp_path / "out"))


@pytest.mark.parametrize("given", ["optimizer.lr=1e-3", "run_name=a", "output_root=b", "launch=slurm"])
def test_settings_that_trials_cannot_share_are_refused(tmp_path: Path, given: str):
    with pytest.raises(ValueError, match=given):
        plan_sweep(SweepRequest(write(tmp_path / "mine.yaml"), (given,)))


def test_a_number_that_plain_yaml_takes_for_text_is_a_number(tmp_path: Path):
    path = write(tmp_path / "mine.yaml")
    path.write_text(path.read_text().replace("0.001", "1e-3"))
    plan = plan_sweep(SweepRequest(path))
    assert [values for _, values in known_trials(plan)] == [{"optimizer.lr": 1e-3}, {"optimizer.lr": 1e-4}]


def test_the_console_prints_every_command_and_starts_nothing(tmp_path: Path):
    path = write(tmp_path / "mine.yaml", parameters={"data.instruction": {"values": ["say: a, b", "c"]}})
    pairs = ["data=pairs", "data.path=x y", "data.source=a", "data.target=b"]
    command = [str(Path(sys.executable).parent / "physedit"), "sweep", str(path), "--dry-run", "--local", *pairs]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, timeout=120).stdout
    assert """'data.instruction='"'"'say: a, b'"'"''""" in said  # Hydra's quotes inside a shell's
    assert "'data.path=x y'" in said
    assert "2 of 2 trials were validated; nothing was started." in said
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]


def test_without_local_it_says_what_to_type(tmp_path: Path):
    from typer.testing import CliRunner

    from physedit.train.cli import app

    done = CliRunner().invoke(app, ["sweep", str(write(tmp_path / "mine.yaml"))])
    assert isinstance(done.exception, ConfigError)
    assert "--local" in str(done.exception)
