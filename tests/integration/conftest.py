"""Runs of the smoke experiment: real classes with random weights, 8 steps, inside this process or as a command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.runs import smoke_overrides

from physedit.train import preflight, sft
from physedit.train.compose import compose_config
from physedit.train.signals import StopFlag


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small embedded world shared by all runs of a session."""
    from physedit.data_loaders.scenes.write import ensure_world

    folder = tmp_path_factory.mktemp("world") / "scenes"
    ensure_world(folder, num_train=48, num_benchmark=12, seed=7)
    return folder


@pytest.fixture
def run_smoke(world: Path, tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that trains ``experiment=smoke`` in this process and returns the run folder."""

    def run(*overrides: str, name: str = "run", stop: StopFlag | None = None) -> Path:
        given = smoke_overrides(world, tmp_path, name, overrides)
        config = compose_config(given)
        preflight.check(config)
        sft.train(config, given, "physedit train", StopFlag() if stop is None else stop)
        return tmp_path / name

    return run
