"""The same loop under ``accelerate launch``: two processes on the CPU train as one does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.support.runs import metrics_of, smoke_overrides

LAUNCH = (
    "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
    "--main_process_port", "0", "-m", "physedit.train",
)  # fmt: skip
EVALUATED = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=7")


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONSAFEPATH": "1"}


@pytest.mark.slow
def test_two_processes_train_on_the_same_samples_as_one(run_smoke, world: Path, tmp_path: Path):
    alone = run_smoke(*EVALUATED, name="alone")
    command = [str(Path(sys.executable).parent / "accelerate"), "launch", *LAUNCH]
    given = smoke_overrides(world, tmp_path, "pair", EVALUATED)
    subprocess.run([*command, *given], check=True, env=environment(), timeout=300, cwd=tmp_path)
    pair = tmp_path / "pair"
    recorded = json.loads((pair / "environment.json").read_text())
    assert (recorded["distributed_type"], recorded["num_processes"]) == ("MULTI_CPU", 2)

    for one, two in zip(metrics_of(alone), metrics_of(pair), strict=True):
        assert one["step"] == two["step"]
        if "train/loss" in one:
            assert one["train/loss"] == pytest.approx(two["train/loss"], rel=1e-5)  # sums in another order
            assert one["train/samples"] == two["train/samples"]
    adapter = "checkpoints/step_00000008/adapter/pytorch_lora_weights.safetensors"
    one, two = load_file(alone / adapter), load_file(pair / adapter)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert (value - two[name]).abs().max() < 1e-5, name  # Adam divides by tiny second moments in eight steps
    items = (pair / "eval/scenes/step_00000008/items.jsonl").read_text().splitlines()
    assert len({json.loads(line)["index"] for line in items}) == 7


@pytest.mark.slow
def test_sigterm_saves_exits_with_143_and_the_same_command_goes_on(world: Path, tmp_path: Path, run_smoke):
    more = ("num_steps=60", "log_every=5", "schedule=cosine")
    command = [str(Path(sys.executable).parent / "physedit"), "train", *smoke_overrides(world, tmp_path, "run", more)]
    process = subprocess.Popen(command, env=environment(), cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while (not metrics.exists() or metrics.read_text().count("\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    stopped = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert len(stopped) == 1
    assert stopped[0] < "step_00000060"

    subprocess.run(command, check=True, env=environment(), timeout=300, cwd=tmp_path)
    whole = run_smoke(*more, name="whole")
    adapter = "checkpoints/step_00000060/adapter/pytorch_lora_weights.safetensors"
    assert (tmp_path / "run" / adapter).read_bytes() == (whole / adapter).read_bytes()
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
