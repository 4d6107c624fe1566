"""Runs whose fused optimizer is told on the device what not to update with, as on a GPU; here it is asked for."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import spoilt_train
from tests.support.runs import StopAtOnce, adapter_bytes, metrics_of, smoke_overrides

from physedit.launch.plan import PROFILES
from physedit.train.signals import Stopped

FUSED = ("+optimizer.fused=true", "ema_decay=0.9")


def test_a_run_with_a_fused_optimizer_resumes_bit_for_bit(run_smoke: Callable[..., Path]) -> None:
    whole = run_smoke(*FUSED, name="whole")
    with pytest.raises(Stopped):
        run_smoke(*FUSED, name="stopped", stop=StopAtOnce())
    resumed = run_smoke(*FUSED, name="stopped")
    assert adapter_bytes(resumed, 8) == adapter_bytes(whole, 8)
    assert metrics_of(resumed) == metrics_of(whole)


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_on_one_rank_stops_all_with_step_and_samples(world: Path, tmp_path: Path) -> None:
    more = (*FUSED, "log_every=2", "checkpoint.every=2", "num_steps=8")
    done = subprocess.run(
        [
            sys.executable, "-m", "physedit.train.launcher", "--config_file", str(PROFILES / "cpu_ddp2.yaml"),
            str(Path(spoilt_train.__file__)), *smoke_overrides(world, tmp_path, "run", more),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "NO_COLOR": "1", "COLUMNS": "200"},
        cwd=PROFILES.parent.parent, check=False, timeout=300, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert done.stdout.count(f"The loss of step {spoilt_train.STEP} is nan and its gradient norm nan.") == 2
    assert done.stdout.count("Samples whose loss is not finite: train-00000.parquet:") == 2
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [2]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_00000002"]
