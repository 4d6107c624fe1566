"""What a resumed run may change, and what it may not."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.run_folder import check_run_folder


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
