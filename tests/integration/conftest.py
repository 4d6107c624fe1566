"""Runs of the smoke experiment: real classes with random weights, 8 steps, inside this process or as a command."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.runs import smoke_overrides
from tests.support.wandb_server import KEY, WandbServer, wandb_server

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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server of wandb's that this process' client is told of; without the key of whoever runs this."""
    import wandb

    wandb.teardown()  # a client that is at work keeps the address it was started with
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb_server() as served:
        monkeypatch.setenv("WANDB_BASE_URL", served.base_url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield served
        wandb.teardown()
