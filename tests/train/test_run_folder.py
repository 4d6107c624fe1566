"""What a resumed run may change, and what it may not; and which folders a run may begin in."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from physedit.eval_hooks.files import DamagedFileError
from physedit.train.checkpoint import CheckpointIncomplete
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.run_folder import check_run_folder, set_records_aside


def started(root: Path, *overrides: str) -> list[str]:
    """Leaves the folder of a run with a checkpoint, and returns its overrides."""
    asked = ["experiment=smoke", f"output_root={root}", *overrides]
    folder = root / "smoke"
    (folder / "checkpoints/step_00000001").mkdir(parents=True)
    OmegaConf.save(compose_config(asked), folder / "config.yaml", resolve=True)
    return asked


@pytest.mark.parametrize(
    "change",
    [
        "backbone.encoders=offload",
        "backbone.gradient_checkpointing=true",
        "num_workers=1",
        "encode=cached",
        "judge=gpt5",
        "picabench.level=explicit",
        "backbone.edit_steps=9",
    ],
)
def test_settings_that_change_no_step_may_change_on_resume(tmp_path: Path, change: str) -> None:
    check_run_folder(compose_config([*started(tmp_path), change]))


@pytest.mark.parametrize("change", ["backbone.area_px=8192", "backbone.dtype=bfloat16", "seed=1", "adapter.rank=8"])
def test_settings_that_change_steps_may_not(tmp_path: Path, change: str) -> None:
    asked = started(tmp_path)
    key = change.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"started with other settings: {key} was"):
        check_run_folder(compose_config([*asked, change]))


def test_a_setting_that_is_newer_than_the_run_counts_as_its_default(tmp_path: Path) -> None:
    asked, saved = started(tmp_path), tmp_path / "smoke/config.yaml"
    config = OmegaConf.load(saved)
    del config.adapter.compute_dtype
    OmegaConf.save(config, saved)
    check_run_folder(compose_config(asked))
    with pytest.raises(ConfigError, match=r"adapter\.compute_dtype was float32, is bfloat16"):
        check_run_folder(compose_config([*asked, "adapter.compute_dtype=bfloat16"]))


def without_checkpoints(root: Path) -> tuple[list[str], Path]:
    """As ``started``, but with no ``checkpoints`` folder; returns the run folder too."""
    asked = started(root)
    folder = root / "smoke"
    (folder / "checkpoints/step_00000001").rmdir()
    (folder / "checkpoints").rmdir()
    return asked, folder


def test_checkpoints_behind_a_broken_link_are_not_taken_for_none(tmp_path: Path) -> None:
    asked, folder = without_checkpoints(tmp_path)
    check_run_folder(compose_config(asked))
    (folder / "checkpoints").symlink_to(tmp_path / "unmounted")
    with pytest.raises(CheckpointIncomplete, match=r"checkpoints is a link to .*unmounted.*[Mm]ount"):
        check_run_folder(compose_config(asked))


def test_a_step_behind_a_broken_link_is_not_passed_over(tmp_path: Path) -> None:
    asked = started(tmp_path)
    (tmp_path / "smoke/checkpoints/step_00000002").symlink_to(tmp_path / "unmounted")
    with pytest.raises(CheckpointIncomplete, match=r"step_00000002 is a link"):
        check_run_folder(compose_config(asked))


def test_a_file_named_checkpoints_is_refused(tmp_path: Path) -> None:
    asked, folder = without_checkpoints(tmp_path)
    (folder / "checkpoints").touch()
    with pytest.raises(CheckpointIncomplete, match=r"checkpoints is a file"):
        check_run_folder(compose_config(asked))


def test_a_run_folder_behind_a_broken_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "smoke").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ConfigError, match=r"smoke is a link to .*unmounted"):
        check_run_folder(compose_config(["experiment=smoke", f"output_root={tmp_path}"]))


def test_a_run_whose_evaluated_checkpoints_are_gone_does_not_begin_again(tmp_path: Path) -> None:
    asked, folder = without_checkpoints(tmp_path)
    (folder / "summary.json").write_text(json.dumps({"newest": None}))
    check_run_folder(compose_config(asked))
    (folder / "summary.json").write_text(json.dumps({"newest": {"step": 4}}))
    with pytest.raises(ConfigError, match=r"tells of the checkpoint of step 4, but .*checkpoints holds none"):
        check_run_folder(compose_config(asked))


def test_numbers_of_a_run_that_never_saved_are_kept_when_it_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for number in (1, 2):
        path.write_text(f'{{"step": 0, "scenes/psnr": 1.0}}\n{{"step": {number}, "train/loss": 1.0}}\n')
        text = path.read_text()
        set_records_aside(tmp_path)
        assert not path.exists()
        assert (tmp_path / f"metrics_before_restart_{number}.jsonl").read_text() == text
    path.write_text('{"step": 0, "scenes/psnr": 1.0}\n')
    set_records_aside(tmp_path)
    assert path.exists()


@pytest.mark.parametrize("left", [[".lock"], [".lock", ".config.yaml.part"], [".lock", "launch"]])
def test_a_start_that_was_cut_off_before_the_config_was_written_is_no_run_yet(tmp_path: Path, left: list[str]) -> None:
    folder = tmp_path / "smoke"
    folder.mkdir()
    for name in left:
        (folder / name).touch()
    check_run_folder(compose_config(["experiment=smoke", f"output_root={tmp_path}", "resume=never"]))
    (folder / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds files but no config\.yaml"):
        check_run_folder(compose_config(["experiment=smoke", f"output_root={tmp_path}"]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("seed: ${oc.env:NO_SUCH_VARIABLE}\n", "cannot be read .*NO_SUCH_VARIABLE"),
        ("seed: ${\n", "cannot be read"),
        ("num_steps: abc\n", "is damaged: its num_steps is 'abc', no whole number"),
        ("num_steps: null\n", "is damaged: its num_steps is None"),
    ],
)
def test_a_damaged_config_of_a_run_is_refused_with_a_remedy(tmp_path: Path, damage: str, said: str) -> None:
    asked, saved = started(tmp_path), tmp_path / "smoke/config.yaml"
    key = damage.split(":")[0]
    kept = [line for line in saved.read_text().splitlines(keepends=True) if not line.startswith(f"{key}:")]
    saved.write_text("".join(kept) + damage)
    with pytest.raises(ConfigError, match=rf"config\.yaml {said}.*newest checkpoint, or choose another run_name"):
        check_run_folder(compose_config(asked))


@pytest.mark.parametrize("line", ["junk\n{}\n", "{}\n", '{"step": "abc"}\n', '{"step": null}\n'])
def test_damaged_numbers_are_refused_before_the_run_with_what_really_helps(tmp_path: Path, line: str) -> None:
    asked, path = started(tmp_path), tmp_path / "smoke/metrics.jsonl"
    path.write_text(line)
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl, line 1 is damaged: .*move the file away") as refused:
        check_run_folder(compose_config(asked))
    assert "to redo it" not in str(refused.value)
    path.unlink()
    check_run_folder(compose_config(asked))
