"""Sweeps with the trainer itself: F02 and F09 on two ranks, F07 as wandb's agent starts a run, shared bases."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
import yaml
from omegaconf import OmegaConf
from tests.support.runs import metrics_of, physedit
from typer.testing import CliRunner
from wandb.sdk.lib import config_util

from physedit.train.cli import app
from physedit.train.config import ConfigError

BROKEN = """
from physedit.eval_hooks.picabench.hook import PicaBenchHook

class Broken(PicaBenchHook):
    def run(self, context):
        if context.step > 0:
            raise RuntimeError("the judge has left")
        return super().run(context)
"""


def write_sweep(path: Path, world: Path, parameters: Mapping[str, list[object]], *more: str) -> Path:
    command = ["physedit", "train", "experiment=smoke", f"scenes.folder={world}", "scenes.write=false", *more]
    content = {
        "method": "grid",
        "parameters": {key: {"values": values} for key, values in parameters.items()},
        "command": [*command, "${args_no_hyphens}"],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def wandb_run(folder: Path) -> tuple[str, dict[str, Any], int]:
    """Returns id, config and exit code of the only offline run of a run folder, as wandb's own reader prints them."""
    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = {
        row["type"]: row[row["type"]] for row in map(json.loads, output.splitlines()) if row["type"] in ("run", "exit")
    }
    return rows["run"]["run_id"], rows["run"]["config"]["update"], rows["exit"].get("exit_code", 0)


@pytest.mark.slow
def test_two_trials_on_two_ranks_are_two_tracked_runs_and_the_failed_one_does_not_reach_the_other(
    world: Path, tmp_path: Path, run_smoke
):
    file = write_sweep(tmp_path / "pair.yaml", world, {"optimizer.lr": [1e30, 1e-3]}, "launch=cpu_ddp2")
    done = physedit("sweep", str(file), "--local", "--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert [(row["state"], row["exit_code"]) for row in record["trials"]] == [("failed", 1), ("finished", 0)]
    log = (tmp_path / "runs/sweeps/pair/trial_001/launch/trial.log").read_text()
    assert "is not finite" in log
    assert "trial_001 failed with exit code 1" in done.stderr
    failed, finished = (tmp_path / "runs/sweeps/pair" / row["run_folder"] for row in record["trials"])
    assert json.loads((finished / "environment.json").read_text())["num_processes"] == 2
    (first, theirs, bad), (second, ours, good) = wandb_run(failed), wandb_run(finished)
    assert first != second
    assert (theirs["optimizer"]["lr"], ours["optimizer"]["lr"]) == (1e30, 1e-3)
    assert (theirs["run_name"], ours["run_name"]) == ("trial_001", "trial_002")
    assert (bad != 0, good) == (True, 0)
    for one, two in zip(metrics_of(run_smoke("optimizer.lr=1e-3", name="alone")), metrics_of(finished), strict=True):
        assert one["step"] == two["step"]
        if "train/loss" in one:
            assert one["train/loss"] == pytest.approx(two["train/loss"], rel=1e-5)  # sums in another order


@pytest.mark.slow
def test_trials_share_the_base_and_a_failed_evaluation_is_no_failed_trial(world: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PHYSEDIT_TARGET_PACKAGES", "broken")
    evaluated = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=4", "eval.scenes._target_=broken.Broken")
    file = write_sweep(tmp_path / "two.yaml", world, {"adapter.rank": [2, 4]}, "tracker=none", *evaluated)
    done = physedit("sweep", str(file), "--local", "num_steps=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 finished, 2 with a failed evaluation." in done.stdout
    assert "an evaluation failed: scenes at step 2: RuntimeError: the judge has left" in done.stderr
    folder = tmp_path / "runs/sweeps/two"
    assert len(list((folder / "base_cache/scenes").iterdir())) == 2  # pictures and answers of one base
    first, second = (folder / trial / "eval/scenes/base" for trial in ("trial_001", "trial_002"))
    edited = sorted(path.name for path in (first / "output_img").iterdir())
    assert len(edited) == 4
    for name in edited:  # one file, linked: the second trial edited none
        assert (first / "output_img" / name).samefile(second / "output_img" / name)
    assert (first / "items.jsonl").read_bytes() == (second / "items.jsonl").read_bytes()
    again = physedit("sweep", str(file), "--local", "num_steps=2", cwd=tmp_path)
    assert "starts" not in again.stderr
    assert again.returncode == 0


def agent_starts(folder: Path, monkeypatch: pytest.MonkeyPatch, values: Mapping[str, object]) -> None:
    """Leaves what wandb's agent leaves for a trial. Source: wandb/wandb_agent.py, Agent._command_run."""
    monkeypatch.chdir(folder)
    path = Path("wandb/sweep-s1/config-abc123.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    config_util.save_config_file_from_dict(str(path), {key: {"value": value} for key, value in values.items()})
    for name, value in {"SWEEP_ID": "s1", "RUN_ID": "abc123", "SWEEP_PARAM_PATH": str(path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)


@pytest.fixture(autouse=True)
def wandb_forgets() -> Iterator[None]:
    """What wandb has read of a sweep stays in the process otherwise."""
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.parametrize("rate", [1e-3, 5e-3])
def test_the_optimizer_uses_the_swept_value_and_the_tracker_shows_it(world, tmp_path, monkeypatch, rate: float):
    used = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *a: (used.append(self.param_groups[0]["lr"]), step(self, *a))
    )
    agent_starts(tmp_path, monkeypatch, {"optimizer.lr": rate, "data.limit": None})
    given = ["experiment=smoke", f"scenes.folder={world}", "num_steps=2", "run_name=${oc.env:WANDB_RUN_ID}"]
    done = CliRunner().invoke(app, ["train", *given, f"optimizer.lr={rate}", "data.limit=None"])
    assert done.exit_code == 0, done.exception
    assert used == [rate, rate]
    folder = tmp_path / "runs" / "abc123"
    assert metrics_of(folder)[-1]["train/learning_rate"] == rate
    assert OmegaConf.load(folder / "config.yaml").optimizer.lr == rate
    name, shown, _ = wandb_run(folder)
    assert (name, shown["optimizer"]["lr"], shown["optimizer.lr"]) == ("abc123", rate, rate)


def test_a_command_without_the_swept_values_stops_before_anything(world: Path, tmp_path: Path, monkeypatch):
    agent_starts(tmp_path, monkeypatch, {"optimizer.lr": 5e-3})
    done = CliRunner().invoke(app, ["train", "experiment=smoke", f"scenes.folder={world}"])
    assert isinstance(done.exception, ConfigError)
    assert "The sweep gives this run optimizer.lr=0.005, but its config has 0.001" in str(done.exception)
    assert "${args_no_hyphens}" in str(done.exception)
    assert not (tmp_path / "runs").exists()
