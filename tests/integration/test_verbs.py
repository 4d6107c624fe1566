"""The verbs beside train, as a user types them."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.support.runs import smoke_overrides
from typer.testing import CliRunner

from physedit.train.checkpoint import CheckpointIncomplete
from physedit.train.cli import app
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.guarded import guarded
from physedit.train.loop import NonFiniteLoss

EVALUATED = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=12")


def run(*arguments: str):
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_train_prints_the_table_and_the_paths(world: Path, tmp_path: Path):
    result = run("train", *smoke_overrides(world, tmp_path, "run", EVALUATED))
    assert result.exit_code == 0
    assert "Causality" in result.stdout
    assert "Semantic accuracy" in result.stdout
    assert "not PICAEval" in " ".join(result.stdout.split())
    for name in ("summary.json", "report.html", "metrics.jsonl", "checkpoints/step_00000008/adapter"):
        assert str(tmp_path / "run" / name) in result.stdout
        assert (tmp_path / "run" / name).exists()
    html = (tmp_path / "run" / "report.html").read_text()
    assert "http://" not in html
    assert "https://" not in html, "the report must need nothing else"


def test_dry_run_checks_and_starts_nothing(world: Path, tmp_path: Path):
    assert run("train", "--dry-run", *smoke_overrides(world, tmp_path, "run", EVALUATED)).exit_code == 0
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="levels asks for"):
        run("train", "--dry-run", *smoke_overrides(world, tmp_path, "run", pairs_without_levels(tmp_path, world)))


def pairs_without_levels(tmp_path: Path, world: Path) -> tuple[str, ...]:
    return (
        "data=pairs",
        f"data.path={world}/train",
        "data.source=src_img",
        "data.target=tgt_img",
        "data.instruction=superficial_prompt",
        "levels.explicit=1.0",
    )


def test_eval_repeats_the_numbers_of_the_run(run_smoke, tmp_path: Path):
    folder = run_smoke(*EVALUATED)
    checkpoint = folder / "checkpoints" / "step_00000008"
    assert run("eval", str(checkpoint)).exit_code == 0
    again = json.loads((folder / "evaluations" / "step_00000008" / "summary.json").read_text())
    first = json.loads((folder / "summary.json").read_text())
    assert again["newest"] == first["newest"]
    with pytest.raises(ConfigError, match=r"adapter\.rank=4"):
        run("eval", str(checkpoint), "adapter.rank=8")
    bare = (checkpoint / "adapter").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="--out"):
        run("eval", str(bare), "experiment=smoke", *EVALUATED)
    with pytest.raises(ConfigError, match="holds no adapter"):
        run("eval", str(checkpoint))


def test_a_setting_of_the_one_evaluation_needs_no_name_in_train_and_eval(world: Path, tmp_path: Path):
    given = smoke_overrides(world, tmp_path, "run", ("eval=scenes", "eval.num_steps=2", "eval.limit=12"))
    assert run("train", *given).exit_code == 0
    folder = tmp_path / "run"
    saved = (folder / "overrides.txt").read_text().splitlines()
    assert saved[-3:] == list(EVALUATED), "in full, so that another evaluation does not inherit them"
    assert "eval.limit=12" in (folder / "command.txt").read_text()
    assert run("eval", str(folder / "checkpoints/step_00000008"), "eval.limit=6").exit_code == 0
    numbers = [
        len(json.loads((path / "eval/scenes/step_00000008/meta_info.json").read_text()))
        for path in (folder, folder / "evaluations" / "step_00000008")
    ]
    assert numbers == [12, 6]
    with pytest.raises(ConfigError, match=r"eval\.scenes\.limit=6 or eval\.picabench_quick\.limit=6"):
        run("eval", str(folder / "checkpoints/step_00000008"), "eval=[scenes,picabench_quick]", "eval.limit=6")


def test_eval_refuses_a_checkpoint_that_is_not_the_saved_one(run_smoke):
    checkpoint = run_smoke(*EVALUATED) / "checkpoints" / "step_00000008"
    file = checkpoint / "adapter" / "pytorch_lora_weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-100:] = bytes(100)
    file.write_bytes(content)
    with pytest.raises(CheckpointIncomplete, match="not the file that was saved"):
        run("eval", str(checkpoint))


def test_paths_outside_a_world_yet_to_be_written_are_checked_before_it_is(tmp_path: Path):
    given = smoke_overrides(tmp_path / "world", tmp_path, "run", ("scenes.write=true", f"data.path={tmp_path}/nowhere"))
    with pytest.raises(ValueError, match="nowhere"):
        run("train", *given)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_in_one_paragraph(world: Path, tmp_path: Path, monkeypatch, capfd):
    def no_space_left(*_arguments: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("physedit.train.events.RunEvents.save", no_space_left)
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: app(args=["train", *smoke_overrides(world, tmp_path, "run", ())], standalone_mode=False))
    assert ended.value.code == 1
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert "run it again" in said
    assert "Traceback" not in said


def test_a_run_that_failed_before_its_first_checkpoint_takes_other_settings(run_smoke, tmp_path: Path):
    with pytest.raises(NonFiniteLoss):
        run_smoke("optimizer.lr=1.0e30", "max_grad_norm=null")
    assert (run_smoke("optimizer.lr=1.0e-4") / "checkpoints" / "step_00000008").is_dir()


def test_scenes_write_keeps_the_same_world_and_refuses_another(tmp_path: Path):
    folder = str(tmp_path / "scenes")
    size = ("--num-train", "6", "--num-benchmark", "6")
    assert run("scenes", "write", folder, *size).exit_code == 0
    assert "already in" in run("scenes", "write", folder, *size).stdout
    with pytest.raises(ConfigError, match="world"):
        run("scenes", "write", folder, *size, "--seed", "3")


def test_config_show_prints_what_train_composes():
    printed = OmegaConf.create(run("config", "show", "experiment=demo", "seed=3").stdout)
    assert printed == OmegaConf.create(OmegaConf.to_container(compose_config(["experiment=demo", "seed=3"])))
    assert json.loads(run("config", "show", "--json", "experiment=demo").stdout)["run_name"] == "demo"
