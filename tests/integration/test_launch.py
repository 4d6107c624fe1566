"""The same loop in two processes on the CPU, by both doors: they train as one does, and stop and fail together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.support import spies
from tests.support.runs import metrics_of, smoke_overrides

from physedit.launch.plan import PROFILES

TOOLS = Path(sys.executable).parent
EVALUATED = ("eval=scenes", "eval.scenes.num_steps=2", "eval.scenes.limit=7")


SPY = """
import os, pathlib
from physedit.train.tracker import NoTracker

class Spy(NoTracker):
    def start(self, run_folder, run_name, config):
        with pathlib.Path(os.environ["SPY_FILE"]).open("a") as file:
            file.write(f"{os.environ['RANK']} {run_folder} {config['seed']}\\n")
"""


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONSAFEPATH": "1"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def machine(rank: int, port: int, given: list[str], cwd: Path, **more: str) -> "subprocess.Popen[str]":
    """Starts one of two machines, each with one process; here both are this one."""
    meet = ["launch=cpu_ddp2", "launch.num_machines=2", f"launch.machine_rank={rank}"]
    meet += ["launch.main_process_ip=127.0.0.1", f"launch.main_process_port={port}"]
    return subprocess.Popen(
        [str(TOOLS / "physedit"), "train", *given, *meet],
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400"} | more, cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.slow
def test_two_machines_started_apart_share_one_folder_one_config_and_one_tracker(world: Path, tmp_path: Path):
    (tmp_path / "spies").mkdir()
    (tmp_path / "spies" / "__init__.py").write_text(SPY)
    more = {"PYTHONPATH": str(tmp_path), "PHYSEDIT_TARGET_PACKAGES": "spies", "SPY_FILE": str(tmp_path / "spy.txt")}
    given = smoke_overrides(world, tmp_path / "runs", "pair", ["tracker._target_=spies.Spy"])
    port = free_port()
    first = machine(0, port, given, tmp_path, **more)
    time.sleep(2)  # so that clocks read apart by more than a second
    second = machine(1, port, given, tmp_path, **more)
    said = [first.communicate(timeout=240)[0], second.communicate(timeout=240)[0]]
    assert (first.returncode, second.returncode) == (0, 0), said
    runs = tmp_path / "runs"
    assert sorted(path.name for path in runs.iterdir() if (path / "config.yaml").exists()) == ["pair"]
    recorded = json.loads((runs / "pair" / "environment.json").read_text())
    assert (recorded["distributed_type"], recorded["num_processes"]) == ("MULTI_CPU", 2)
    assert metrics_of(runs / "pair")[-1]["step"] == 8
    assert (tmp_path / "spy.txt").read_text() == f"0 {runs / 'pair'} 0\n"
    assert (runs / "pair" / "command.txt").read_text().startswith("physedit train experiment=smoke ")
    assert "launch=cpu_ddp2" in (runs / "pair" / "command.txt").read_text()
    assert not list(runs.rglob("*.log"))  # ranks have no files of their own unless launch.rank_logs asks for them


@pytest.mark.slow
def test_ranks_with_different_settings_stop_before_the_first_step(world: Path, tmp_path: Path):
    port = free_port()
    machines = [
        machine(rank, port, smoke_overrides(world, tmp_path, "pair", [f"optimizer.lr=1e-{3 + rank}"]), tmp_path)
        for rank in (0, 1)
    ]
    said = "".join(each.communicate(timeout=240)[0] for each in machines)
    assert "was started with another config than rank 0" in said
    assert 2 in [each.returncode for each in machines]
    assert all(each.returncode for each in machines)
    assert not (tmp_path / "pair" / "metrics.jsonl").exists()


@pytest.fixture(scope="module")
def pair(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains under DDP with spies and returns the run folder; ``spied`` lies beside it."""
    root = tmp_path_factory.mktemp("ddp")
    profile = ["--config_file", str(PROFILES / "cpu_ddp2.yaml")]
    given = ["-m", "physedit.train", *smoke_overrides(world, root, "pair", (*EVALUATED, *spies.OVERRIDES))]
    command = [str(TOOLS / "accelerate"), "launch", *profile, *given]
    more = spies.environment_of(root / "spied")
    subprocess.run(command, check=True, env=environment() | more, timeout=300, cwd=root)
    assert json.loads((root / "pair" / "engine.json").read_text())["wrapper"] == "DistributedDataParallel"
    return root / "pair"


@pytest.mark.slow
def test_c14_ranks_draw_their_own_noise_and_levels_for_samples_of_their_own(pair: Path) -> None:
    seen = {
        key: [spies.lines_of(pair.parent / "spied", rank, key) for rank in (0, 1)]
        for key in ("ids", "adapter", "noise", "normal")
    }
    for key in ("ids", "noise", "normal"):
        first, second = (set(rank[0]) for rank in seen[key])  # of step 1, a micro batch of two
        assert len(first) == len(second) == 2
        assert not first & second, key
    assert seen["adapter"][0] == seen["adapter"][1]  # before each of the eight steps
    assert len(set(seen["adapter"][0])) == len(seen["adapter"][0]) == 8
    noise = [each for rank in seen["noise"] for micro_batch in rank for each in micro_batch]
    assert len(set(noise)) == len(noise) == 8 * 4


@pytest.mark.slow
def test_two_processes_train_on_the_same_samples_as_one(run_smoke, pair: Path):
    alone = run_smoke(*EVALUATED, name="alone")
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
    command = [str(TOOLS / "physedit"), "train", *smoke_overrides(world, tmp_path, "run", more)]
    assert stopped_by_sigterm(command, tmp_path / "run") == 128 + signal.SIGTERM
    stopped = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert len(stopped) == 1
    assert stopped[0] < "step_00000060"

    subprocess.run(command, check=True, env=environment(), timeout=300, cwd=tmp_path)
    whole = run_smoke(*more, name="whole")
    adapter = "checkpoints/step_00000060/adapter/pytorch_lora_weights.safetensors"
    assert (tmp_path / "run" / adapter).read_bytes() == (whole / adapter).read_bytes()
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


@pytest.mark.slow
def test_sigterm_to_the_parent_of_two_ranks_saves_and_exits_with_143(world: Path, tmp_path: Path):
    given = smoke_overrides(world, tmp_path, "pair", ["num_steps=2000", "log_every=5", "launch=cpu_ddp2"])
    command = [str(TOOLS / "physedit"), "train", *given]
    assert stopped_by_sigterm(command, tmp_path / "pair") == 128 + signal.SIGTERM
    (saved,) = (tmp_path / "pair" / "checkpoints").iterdir()
    assert (saved / "manifest.json").exists()
    assert (tmp_path / "pair" / "summary.json").exists()  # both ranks left by themselves


def stopped_by_sigterm(command: list[str], folder: Path) -> int:
    """Starts a run, sends SIGTERM after three lines of metrics, and returns the exit code."""
    process = subprocess.Popen(command, env=environment(), cwd=folder.parent)
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while (not metrics.exists() or metrics.read_text().count("\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=60)
