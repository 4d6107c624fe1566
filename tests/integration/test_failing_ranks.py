"""Two processes of which one is late, fails or dies: the run goes on, or all of it ends soon (C06, D09)."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import faulty_train
from tests.support.runs import metrics_of, smoke_overrides

from physedit.train.checkpoint import verify

LAUNCH = (
    "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
    "--main_process_port", "0",
)  # fmt: skip
FAULTS = {"trouble": "late_judge:0:4 bad_hook:1:6 disk_full:0:8", "crash": "crash:1:3"}
MORE = {
    # Ranks start some seconds apart on a busy machine; the late judge takes longer than this timeout.
    "trouble": ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=3", "eval_steps=[4,6]",
                "collective_timeout_s=20", "checkpoint.every=1", "checkpoint.keep=20"),
    "crash": ("num_steps=100000",),
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    folder: Path
    exit_code: int
    said: str
    seconds: float
    """After the run's last line."""


@pytest.fixture(scope="module")
def ended(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    root = tmp_path_factory.mktemp("failing")
    command = [str(Path(sys.executable).parent / "accelerate"), "launch", *LAUNCH, str(Path(faulty_train.__file__))]
    running, logs = {}, {}
    for name, faults in FAULTS.items():
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "FAULTS": faults}
        given = smoke_overrides(world, root, name, MORE[name])
        logs[name] = root / f"{name}.log"
        with logs[name].open("w") as log:
            running[name] = subprocess.Popen([*command, *given], env=environment, cwd=root, stdout=log, stderr=log)
    found = {}
    for name, process in running.items():
        code = process.wait(timeout=300)
        said = logs[name].read_text()
        found[name] = Ended(root / name, code, said, time.time() - _last_written(root / name))
    return found


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_with_its_own_trace(ended: dict[str, Ended]) -> None:
    crash = ended["crash"]
    assert crash.exit_code != 0
    assert "RuntimeError: a cosmic ray" in crash.said
    assert "faulty_forward" in crash.said


@pytest.mark.slow
def test_an_evaluation_longer_than_the_collective_timeout_trips_none(ended: dict[str, Ended]) -> None:
    evaluated = [line["step"] for line in metrics_of(ended["trouble"].folder) if "scenes/physics_acc" in line]
    assert evaluated == [0, 4]


@pytest.mark.slow
def test_a_hook_that_fails_on_one_rank_is_marked_and_training_goes_on(ended: dict[str, Ended]) -> None:
    trouble = ended["trouble"]
    failed = json.loads((trouble.folder / "failed_evaluations.json").read_text())["failed"]
    assert [(each["hook"], each["step"]) for each in failed] == [("scenes", 6)]
    assert "rank 1: RuntimeError: the judge has left" in failed[0]["error"]
    assert [line["step"] for line in metrics_of(trouble.folder) if "train/loss" in line] == [2, 4, 6, 8]


@pytest.mark.slow
def test_a_full_disk_ends_all_ranks_with_the_reason_and_loses_nothing(ended: dict[str, Ended]) -> None:
    trouble = ended["trouble"]
    assert trouble.exit_code != 0
    assert trouble.seconds < 60
    assert "physedit [rank 0]: [Errno 28] No space left on device" in trouble.said
    folders = sorted((trouble.folder / "checkpoints").iterdir())
    assert [path.name for path in folders] == [f"step_{step:08d}" for step in range(1, 8)]
    for path in folders:
        verify(path)
