"""Starting a plan: files whole, signals passed on once, the exit code of the first rank that failed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from physedit.launch.local import PASSED_ON, start, write_files
from physedit.launch.plan import LAUNCHER, LaunchPlan

RANK = """
import os, pathlib, signal, sys, time
folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
rank, got = os.environ["RANK"], []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: got.append(number))
(folder / f"ready_{rank}").touch()
if mode == "die" and rank == "1":
    print("the trace of rank 1", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
while not got or mode == "die":
    time.sleep(0.05)
for _ in range(10):  # whether a second one comes
    time.sleep(0.05)
(folder / f"got_{rank}").write_text(" ".join(map(str, got)))
while len(list(folder.glob("got_*"))) < 2:  # the first to leave has torch's launcher send SIGTERM to the other
    time.sleep(0.05)
sys.exit(128 + got[0])
"""
PARENT = """
import sys
from physedit.launch.local import start
from physedit.launch.plan import LaunchPlan
sys.exit(start(LaunchPlan(tuple(sys.argv[1:]), {"PET_SIGNALS_TO_HANDLE": "SIGQUIT"}, {})))
"""


def launched(tmp_path: Path, mode: str) -> "subprocess.Popen[str]":
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    arguments = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    arguments += ["--dynamo_backend", "no", "--main_process_port", "0", str(script), str(tmp_path), mode]
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-m", LAUNCHER, *arguments],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 90
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "arrives"), PASSED_ON.items())
def test_a_signal_to_the_parent_reaches_every_rank_once_and_decides_the_exit_code(
    tmp_path: Path, number: signal.Signals, arrives: signal.Signals
):
    parent = launched(tmp_path, "wait")
    wait_for(tmp_path / "ready_0", tmp_path / "ready_1")
    parent.send_signal(number)
    _, said = parent.communicate(timeout=60)
    assert parent.returncode == 128 + arrives
    assert [(tmp_path / f"got_{rank}").read_text() for rank in (0, 1)] == [str(int(arrives))] * 2
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_parent_that_is_killed_takes_its_ranks_with_it(tmp_path: Path):
    parent = launched(tmp_path, "wait")
    wait_for(tmp_path / "ready_0", tmp_path / "ready_1")
    parent.kill()
    wait_for(tmp_path / "got_0", tmp_path / "got_1")
    assert (tmp_path / "got_0").read_text() == str(int(signal.SIGTERM))
    parent.communicate(timeout=60)


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_with_its_own_words_and_exit_code(tmp_path: Path):
    parent = launched(tmp_path, "die")
    wait_for(tmp_path / "ready_0", tmp_path / "ready_1")
    _, said = parent.communicate(timeout=60)  # rank 0 hears SIGTERM and goes on, so it is killed after 30 s
    assert parent.returncode == 128 + signal.SIGKILL
    assert "the trace of rank 1" in said
    assert "Rank 1 was ended by SIGKILL" in said


def test_the_environment_is_added_and_the_exit_code_returned(tmp_path: Path):
    code = "import os, sys; sys.exit(int(os.environ['GIVEN']) + ('PATH' in os.environ))"
    file = tmp_path / "a" / "b.txt"
    assert start(LaunchPlan((sys.executable, "-c", code), {"GIVEN": "4"}, {file: "text\n"})) == 5
    assert file.read_text() == "text\n"
    assert start(LaunchPlan((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), {}, {})) == 137


def test_files_are_written_whole_and_replaced(tmp_path: Path):
    file = tmp_path / "launch" / "config.yaml"
    write_files({file: "old"})
    write_files({file: "new"})
    assert file.read_text() == "new"
    assert [path.name for path in file.parent.iterdir()] == ["config.yaml"]
