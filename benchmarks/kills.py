"""Kills a random process of a two-process run at random moments, and compares what it ends with.

    python benchmarks/kills.py [runs/kills] --kills 20

It trains a run of the smoke experiment without interruption, then another one that is started again after each kill.
Prints one line of JSON per kill (which process, at which step, how long the others took to end) and whether the two
adapters are equal to the last bit. CPU only, DDP over gloo; about half a minute a kill.
Without a folder the runs go to a temporary one.
"""

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Result, add_json_option, report

LAUNCH = (
    "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
    "--main_process_port", "0", "-m", "physedit.train",
)  # fmt: skip
SECONDS_TO_START = 90.0
SECONDS_TO_END = 60.0
"""What a run whose process was killed may take to end."""

_MARK = "PHYSEDIT_KILLS"
"""Variable by which the processes of a launch are found."""
_STARTS = itertools.count()


@dataclass(frozen=True)
class Launch:
    """A launcher, and the value of the variable that all its processes have."""

    process: subprocess.Popen[bytes]
    mark: str


def main() -> None:
    """Runs both and compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", help="must not be there")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-steps", type=int, default=1500, help="more than the kills leave time for")
    add_json_option(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (asked.root or Path(temporary) / "kills").absolute()
        root.mkdir(parents=True)
        longest, equal = _kill_often(root, asked.num_steps, asked.kills, random.Random(asked.seed))
    sys.stdout.write(json.dumps({"kills": asked.kills, "equal": equal, "longest_end_s": round(longest, 1)}) + "\n")
    ended, differing = (
        f"the others' end, longest of {asked.kills} kills",
        f"adapters that differ after {asked.kills} kills",
    )
    results = [
        Result(ended, longest, "s", f"<= {SECONDS_TO_END:g}"),
        Result(differing, int(not equal), "", "== 0"),
    ]
    report(results, asked.json)
    sys.exit(0 if equal else 1)


def _kill_often(root: Path, num_steps: int, kills: int, draws: random.Random) -> tuple[float, bool]:
    """Returns the longest time that a killed run took to end, and whether both runs end with the same adapter."""
    whole = _start(root, "whole", num_steps)
    assert whole.process.wait() == 0, "the uninterrupted run failed"
    longest = 0.0
    for number in range(kills):
        seconds = _kill_once(root, "killed", num_steps, draws, number)
        longest = max(longest, seconds)
    assert _start(root, "killed", num_steps).process.wait() == 0, "the last start failed"
    return longest, _adapter(root / "whole", num_steps) == _adapter(root / "killed", num_steps)


def _kill_once(root: Path, name: str, num_steps: int, draws: random.Random, number: int) -> float:
    """Starts the run, kills one of its processes, and returns how many seconds the others took to end."""
    before = time.time()
    launch = _start(root, name, num_steps)
    engine = root / name / "engine.json"
    deadline = time.monotonic() + SECONDS_TO_START
    if draws.random() < 0.8:  # else somewhere in its start
        while not (engine.exists() and engine.stat().st_mtime > before) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(draws.uniform(0.0, 4.0))
    else:
        time.sleep(draws.uniform(1.0, 15.0))
    processes = _processes(launch)
    if not processes:
        raise SystemExit(f"{root / name} ended before kill {number}; see {root / name}.log, or give more --num-steps.")
    launcher, *ranks = processes
    victim = draws.choice(processes)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    while _processes(launch) and time.monotonic() - killed < SECONDS_TO_END:
        launch.process.poll()
        time.sleep(0.1)
    seconds = time.monotonic() - killed
    left = _processes(launch)
    who = "launcher" if victim == launcher else f"one of {len(ranks)} ranks"
    newest = max((path.name for path in (root / name / "checkpoints").glob("step_*")), default=None)
    line = {"kill": number, "process": who, "newest": newest, "end_s": round(seconds, 1), "left": len(left)}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    assert not left, f"processes {left} still run {SECONDS_TO_END} s after the kill"
    return seconds


def _start(root: Path, name: str, num_steps: int) -> Launch:
    given = (
        "experiment=smoke", "tracker=none", f"run_name={name}", f"output_root={root}", f"scenes.folder={root}/world",
        f"num_steps={num_steps}", "checkpoint.every=5", "log_every=5",
    )  # fmt: skip
    command = [str(Path(sys.executable).parent / "accelerate"), "launch", *LAUNCH, *given]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONSAFEPATH": "1"}
    mark = f"{root}:{next(_STARTS)}"
    with (root / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment | {_MARK: mark}, stdout=log, stderr=log, start_new_session=True
        )
    return Launch(process, mark)


def _processes(launch: Launch) -> list[int]:
    """Returns the living processes of a launch, its launcher first. Ranks lead sessions of their own."""
    mark = f"{_MARK}={launch.mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            is_ours = mark in (folder / "environ").read_bytes().split(b"\0")
            is_run = b"physedit.train" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if is_ours and is_run and not is_dead:
            found.append(int(folder.name))
    return sorted(found, key=lambda pid: (pid != launch.process.pid, pid))


def _adapter(folder: Path, step: int) -> bytes:
    return (folder / f"checkpoints/step_{step:08d}/adapter/pytorch_lora_weights.safetensors").read_bytes()


if __name__ == "__main__":
    main()
