"""Trackers by accelerate's classes: what they hold is what metrics.jsonl holds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests.support.runs import metrics_of

from physedit.train import accelerate_trackers
from physedit.train.accelerate_trackers import TensorBoard, Trackio
from physedit.train.config import ConfigError


def test_tensorboards_file_holds_the_numbers_of_the_run(run_smoke: Callable[..., Path]):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = run_smoke("tracker=tensorboard", "eval=scenes", "eval.scenes.num_steps=1", "eval.scenes.limit=2")
    events = reader.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    written = {
        (key, line["step"]): value
        for line in metrics_of(folder)
        for key, value in line.items()
        if key != "step" and value is not None
    }
    read = {(key, each.step): each.value for key in events.Tags()["scalars"] for each in events.Scalars(key)}
    assert sorted(step for key, step in read if key == "time/samples_per_s") == [2, 4, 6, 8]
    read = {key: value for key, value in read.items() if key[0] != "time/samples_per_s"}  # metrics_of has no times
    assert read == pytest.approx(written, rel=1e-6)  # event files hold float32
    assert {key for key, _ in read} >= {"train/loss", "scenes/physics_acc", "scenes/physics_acc_delta"}
    panel = [key for key in events.Tags()["images"] if key.startswith("scenes/panel/")]
    assert panel
    assert [each.step for each in events.Images(panel[0])] == [0, 8]


def test_tensorboard_shows_a_step_that_was_done_again_once(tmp_path: Path):
    """It is killed after step 12 and goes on from the checkpoint of step 10."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, last in ((1, 12), (11, 14)):
        tracker = TensorBoard()
        tracker.start(tmp_path, "run", {"seed": 1})
        for step in range(first, last + 1):
            tracker.log(step, {"train/loss": float(step)})
        tracker.finish({}, exit_code=0)
        (tmp_path / "checkpoints" / "step_00000010").mkdir(parents=True, exist_ok=True)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("train/loss")] == [(step, step) for step in range(1, 15)]


def test_trackio_keeps_the_run_in_its_own_database_and_asks_no_server(tmp_path: Path):
    """Where the package is there, which no set of versions with pillow 13 can have."""
    pytest.importorskip("trackio")
    program = """
from pathlib import Path
from physedit.train.accelerate_trackers import Trackio
for steps in ((1, 2), (3,)):
    tracker = Trackio()
    tracker.start(Path(), "run", {"seed": 1, "optimizer": {"lr": 0.5}})
    for step in steps:
        tracker.log(step, {"train/loss": step / 10})
    tracker.finish({}, exit_code=0)
"""
    nowhere = "http://127.0.0.1:9"
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path), "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=240, capture_output=True)
    command = ["get", "metric", "--project", "physedit", "--run", "run", "--metric", "train/loss", "--json"]
    read = subprocess.run(
        [str(Path(sys.executable).parent / "trackio"), *command], env=environment, check=True, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip
    found = [(each["step"], each["value"]) for each in json.loads(read.stdout)["values"]]
    assert found == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_trackio_gets_the_run_by_accelerates_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told: list[object] = []
    run = SimpleNamespace(log=lambda values, step: told.append((step, values)), finish=lambda: told.append("finished"))
    package = ModuleType("trackio")
    package.init = lambda **given: told.append(given) or run  # type: ignore[attr-defined]
    package.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "trackio", package)
    tracker = Trackio()
    tracker.start(tmp_path, "run", {"seed": 1})
    tracker.log(3, {"train/loss": 0.5})
    tracker.finish({}, exit_code=0)
    opened = {"project": "physedit", "name": "run", "resume": "allow", "config": {"seed": 1}}
    assert told == [opened, (3, {"train/loss": 0.5}), "finished"]


@pytest.mark.parametrize(("kind", "name"), [(TensorBoard, "tensorboard"), (Trackio, "trackio")])
def test_a_package_that_is_missing_is_named_with_its_extra(kind, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accelerate_trackers, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"tracker={name} needs .*physedit\[{name}\]"):
        kind()
