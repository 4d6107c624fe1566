"""Two processes of which one is late, fails or dies: the run goes on, or all of it ends soon."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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
FAULTS = {
    "saves": "",
    "hook_stops": "bad_hook:0:2",
    "trouble": "late_judge:0:4 bad_hook:1:6 disk_full:0:8",
    "crash": "crash:1:3",
}
EVALUATED = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=3")
MORE = {
    # Ranks start some seconds apart on a busy machine; the late judge takes longer than this timeout.
    "saves": ("num_steps=2", "collective_timeout_s=20"),
    "hook_stops": (*EVALUATED, "eval_steps=[2]", "eval_failures=stop", "collective_timeout_s=20"),
    "trouble": (*EVALUATED, "eval_steps=[4,6]", "collective_timeout_s=20", "checkpoint.every=1", "checkpoint.keep=20"),
    "crash": ("num_steps=100000",),
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    folder: Path
    exit_code: int
    said: str
    seconds: float
    """After the run's last line of numbers, which comes before the save and the evaluation of that step."""


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

    def end_of(name: str) -> Ended:
        code = running[name].wait(timeout=300)
        seconds = time.time() - (root / name / "metrics.jsonl").stat().st_mtime
        return Ended(root / name, code, logs[name].read_text(), seconds)

    with ThreadPoolExecutor() as pool:
        return dict(zip(FAULTS, pool.map(end_of, FAULTS), strict=True))


@pytest.mark.slow
def test_c01_a_save_that_needs_every_rank_gets_them_and_the_run_ends(ended: dict[str, Ended]) -> None:
    saves = ended["saves"]
    assert saves.exit_code == 0, saves.said[-3000:]
    assert saves.seconds < 60
    recorded = json.loads((saves.folder / "environment.json").read_text())
    assert (recorded["distributed_type"], recorded["num_processes"]) == ("MULTI_CPU", 2)
    for rank in (0, 1):
        assert saves.said.count(f"rank {rank} was at the barrier of a save") == 1
    (saved,) = (saves.folder / "checkpoints").iterdir()
    verify(saved)


@pytest.mark.slow
def test_c06_a_hook_that_fails_on_rank_0_ends_all_ranks_with_its_error_if_asked(ended: dict[str, Ended]) -> None:
    stops = ended["hook_stops"]
    assert stops.exit_code != 0
    assert stops.seconds < 20  # the timeout of a collective
    assert "rank 0: RuntimeError: the judge has left" in stops.said  # as rank 1 ends
    assert [line["step"] for line in metrics_of(stops.folder) if "train/loss" in line] == [2]
    assert [path.name for path in (stops.folder / "checkpoints").iterdir()] == ["step_00000002"]


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_with_its_own_trace(ended: dict[str, Ended]) -> None:
    crash = ended["crash"]
    assert crash.exit_code != 0
    assert "RuntimeError: a cosmic ray" in crash.said
    assert "faulty_forward" in crash.said


@pytest.mark.slow
def test_c06_an_evaluation_longer_than_the_collective_timeout_trips_none(ended: dict[str, Ended]) -> None:
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
def test_d09_a_full_disk_ends_all_ranks_with_the_reason_and_loses_nothing(ended: dict[str, Ended]) -> None:
    trouble = ended["trouble"]
    assert trouble.exit_code != 0
    assert trouble.seconds < 60
    assert "physedit [rank 0]: [Errno 28] No space left on device" in trouble.said
    folders = sorted((trouble.folder / "checkpoints").iterdir())
    assert [path.name for path in folders] == [f"step_{step:08d}" for step in range(1, 8)]
    for path in folders:
        verify(path)
