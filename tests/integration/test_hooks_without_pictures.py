"""Runs that evaluate by a loss and by a program, from the command line's overrides to the summary."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.support.runs import adapter_bytes, metrics_of, physedit, smoke_overrides

from physedit.train import preflight
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.typed_commands import check_typed_commands

PROGRAM = """
import json, sys
from safetensors import safe_open
adapter, step = sys.argv[1:]
if step == "4":
    sys.exit("no card at step 4")
total = 0.0
if adapter:
    with safe_open(adapter, "pt") as content:
        total = sum(float(content.get_tensor(name).abs().sum()) for name in content.keys())
print(json.dumps({"size": total}))
"""


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    program = tmp_path / "score.py"
    program.write_text(PROGRAM)
    return [
        "eval=[heldout_loss,command]",
        "data.split=train",
        "data.heldout_share=0.3",
        "eval.heldout_loss.num_items=2",
        "eval.heldout_loss.num_quantiles=2",
        "eval_steps=[4]",
        f"eval.command.command=[{sys.executable},{program},'{{adapter}}','{{step}}']",
        "best_metric=heldout_loss/all",
    ]


def test_losses_and_a_programs_numbers_are_recorded_and_training_is_the_same(
    run_smoke: Callable[..., Path], both: list[str]
) -> None:
    folder = run_smoke(*both)
    plain = run_smoke("data.split=train", "data.heldout_share=0.3", name="plain")
    assert adapter_bytes(folder, 8) == adapter_bytes(plain, 8)

    summary = json.loads((folder / "summary.json").read_text())
    newest = summary["newest"]["metrics"]
    assert {"heldout_loss/all", "heldout_loss/q1", "heldout_loss/q2", "command/size"} <= newest.keys()
    assert newest["heldout_loss/all"]["n"] == 2
    assert newest["command/size"]["base"] == 0.0
    assert newest["command/size"]["tuned"] > 0.0
    losses = {line["step"]: line["heldout_loss/all"] for line in metrics_of(folder) if "heldout_loss/all" in line}
    assert losses.keys() == {0, 4, 8}
    assert losses[0] == newest["heldout_loss/all"]["base"]
    assert summary["best"]["step"] == min((4, 8), key=lambda step: losses[step])

    (failed,) = summary["failed_evaluations"]
    assert (failed["hook"], failed["step"]) == ("command", 4)
    assert "no card at step 4" in failed["error"]
    assert (folder / "eval/command/step_00000004/stderr.txt").read_text().strip() == "no card at step 4"
    assert "heldout_loss" in (folder / "report.html").read_text()


def test_held_out_rows_of_a_world_yet_to_be_written_are_checked_later(tmp_path: Path, both: list[str]) -> None:
    given = smoke_overrides(tmp_path / "world", tmp_path, "run", [*both, "scenes.write=true"])
    preflight.check(compose_config(given))
    absent = smoke_overrides(tmp_path / "world", tmp_path, "run", both)
    with pytest.raises(ConfigError, match=r"eval\.heldout_loss"):
        preflight.check(compose_config(absent))


@pytest.mark.parametrize("more", [[], ["data=mixture"], ["data.split=train"]])
def test_without_a_held_out_part_the_setting_is_named(more: list[str]) -> None:
    if more == ["data.split=train"]:
        more = [*more, "data.limit=4"]
    with pytest.raises(ConfigError, match=r"hold none out\. Set data\.(members\.NAME\.)?split=train"):
        compose_config(["experiment=smoke", "eval=heldout_loss", *more])


def test_of_a_mixture_the_members_that_hold_rows_out_are_measured() -> None:
    members = ["+data@data.members.a=scenes", "+data@data.members.b=scenes", "+data.weights={a: 1, b: 2}"]
    split = ["data.members.a.split=train", "data.members.a.heldout_share=0.2", "data.members.a.limit=9"]
    config = compose_config(["experiment=smoke", "eval=heldout_loss", "data=mixture", *members, *split])
    data = OmegaConf.to_container(config.eval.heldout_loss.data)
    assert isinstance(data, dict)
    assert data["members"].keys() == data["weights"].keys() == {"a"}
    assert (data["members"]["a"]["split"], data["members"]["a"]["limit"]) == ("heldout", None)
    assert config.data.members.a.split == "train"


def test_data_without_its_path_is_asked_for_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match=r"No value for data\.instruction, data\.path, data\.source, data\.target\."):
        compose_config(["experiment=smoke", "eval=heldout_loss", "data=pairs"])


def test_a_program_that_only_the_run_names_is_not_started() -> None:
    named = "eval.command.command=[ls]"
    config = compose_config(["experiment=smoke", "eval=command", named])
    with pytest.raises(ConfigError, match=r"start a program, eval\.command\.command=\[.ls.\]"):
        check_typed_commands(config, ["seed=1"])
    check_typed_commands(config, [named])
    check_typed_commands(compose_config(["experiment=smoke", "eval=scenes"]), [])


@pytest.mark.slow
def test_ranks_that_share_a_cut_denoiser_measure_what_one_process_does(
    world: Path, tmp_path: Path, both: list[str]
) -> None:
    given = [*both, "eval_steps=[]", "num_steps=2", "eval.heldout_loss.num_items=3"]  # odd: one rank passes in vain
    losses = {}
    for launch in ("none", "cpu_zero3"):
        more = smoke_overrides(world, tmp_path / launch, launch, [*given, f"launch={launch}"])
        ended = physedit("train", *more)
        assert ended.returncode == 0, ended.stderr
        folder = tmp_path / launch / launch
        rows = json.loads((folder / "eval/heldout_loss/step_00000002/losses.json").read_text())["rows"]
        losses[launch] = [row["losses"] for row in rows]
        assert (folder / "eval/command/base/stdout.txt").read_text() == '{"size": 0.0}\n'
    assert len(losses["none"]) == 3
    for alone, shared in zip(losses["none"], losses["cpu_zero3"], strict=True):
        assert shared == pytest.approx(alone, rel=1e-5)  # gradients of ranks add up in another order
