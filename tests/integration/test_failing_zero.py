"""A rank that fails in an evaluation under ZeRO-3, whose passes need all ranks, and one that is killed (C05, C06)."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.runs import metrics_of, smoke_overrides

from physedit.launch.plan import PROFILES
from physedit.train.checkpoint import verify

SCRIPT = Path(__file__).parent.parent / "support" / "faulty_edit.py"  # it is run, not imported: it looks for a rank
ZERO = {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "ACCELERATE_USE_CPU": "false"}
LAUNCHES = {
    "edit": ("cpu_zero3", ZERO, ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=3", "eval_steps=[2,4,6]",
                                 "ema_decay=0.9")),
    "kill": ("cpu_ddp2", {"ACCELERATE_USE_CPU": "true"}, ("num_steps=100000",)),
}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    folder: Path
    exit_code: int
    said: str
    seconds: float
    """From the fault to the end of the launch."""


@pytest.fixture(scope="module")
def ended(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    root = tmp_path_factory.mktemp("failing")

    def run(fault: str) -> Ended:
        profile, variables, more = LAUNCHES[fault]
        command = [sys.executable, "-m", "physedit.train.launcher", "--config_file", str(PROFILES / f"{profile}.yaml")]
        file = root / f"{fault}.fault"
        environment = os.environ | variables | {
            "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "FAULT": fault, "FAULT_FILE": str(file), "NO_COLOR": "1",
            "COLUMNS": "200", "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
        }  # fmt: skip
        given = smoke_overrides(world, root, fault, more)
        done = subprocess.run(
            [*command, str(SCRIPT), *given], env=environment, cwd=PROFILES.parent.parent, check=False,
            timeout=300, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        seconds = time.time() - file.stat().st_mtime if file.exists() else float("inf")
        return Ended(root / fault, done.returncode, done.stdout, seconds)

    with ThreadPoolExecutor() as starts:
        return dict(zip(LAUNCHES, starts.map(run, LAUNCHES), strict=True))


@pytest.mark.slow
def test_a_rank_that_fails_between_the_passes_of_an_edit_costs_that_evaluation_alone(ended: dict[str, Ended]) -> None:
    edit = ended["edit"]
    assert json.loads((edit.folder / "engine.json").read_text())["zero_stage"] == 3
    failed = json.loads((edit.folder / "failed_evaluations.json").read_text())["failed"]
    assert [(each["hook"], each["step"]) for each in failed] == [("scenes", 4)]
    assert "rank 1: RuntimeError: the picture is gone" in failed[0]["error"]
    assert [line["step"] for line in metrics_of(edit.folder) if "scenes/physics_acc" in line] == [0, 2]
    assert [line["step"] for line in metrics_of(edit.folder) if "train/loss" in line] == [2, 4, 6]


@pytest.mark.slow
def test_a_rank_that_fails_within_a_pass_ends_the_run_soon_with_its_own_trace(ended: dict[str, Ended]) -> None:
    edit = ended["edit"]
    assert edit.exit_code == 1
    assert edit.seconds < 60
    assert "[rank 1] Failed within a pass of all ranks" in edit.said
    assert "RuntimeError: a cosmic ray in the last layer" in edit.said
    assert "Rank 1 was the first to fail" in edit.said
    verify(edit.folder / "checkpoints" / "step_00000006")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_within_a_minute_and_is_named(ended: dict[str, Ended]) -> None:
    kill = ended["kill"]
    assert kill.exit_code == 137
    assert kill.seconds < 60
    assert "Rank 1 was ended by SIGKILL" in kill.said


@pytest.mark.slow
def test_nothing_of_the_denoiser_is_moved_whole_by_a_run_under_zero3(ended: dict[str, Ended]) -> None:
    moves = sorted(line for line in ended["edit"].said.splitlines() if "moves a denoiser" in line)
    assert moves == [f"rank {rank} moves a denoiser of 0 numbers" for rank in (0, 1)]
    assert "moves a denoiser of 0 numbers" not in ended["kill"].said  # where it is whole, the spy says so
