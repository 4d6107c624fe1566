"""An evaluation on two processes of which one is killed, and started again."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import evaluating_worker
from tests.support.stand_ins import write_benchmark

ROOT = Path(__file__).parents[2]
NUM_ITEMS = 7


def start(world_size: int, benchmark: Path, run: Path, **environment: str) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    run.parent.mkdir(exist_ok=True)
    with (run.parent / "log.txt").open("a") as log:
        return [
            subprocess.Popen(
                [
                    sys.executable,
                    evaluating_worker.__file__,
                    str(rank),
                    str(world_size),
                    port,
                    str(benchmark),
                    str(run),
                ],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
                stdout=log,
                stderr=log,
            )
            for rank in range(world_size)
        ]


def codes_of(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.wait(timeout=280) for process in processes]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "timing.json"
    }


@pytest.mark.slow
def test_two_ranks_one_killed_and_restarted_give_the_report_of_one_undisturbed_rank(tmp_path: Path) -> None:
    benchmark = write_benchmark(tmp_path / "bench", NUM_ITEMS)
    alone = start(1, benchmark, tmp_path / "alone/run")
    # Of seven items the second rank edits three of the base, then of the adapter: it dies in its second of those.
    killed = start(2, benchmark, tmp_path / "pair/run", KILL_AT="6")
    codes = codes_of(killed)
    log = tmp_path / "pair/log.txt"
    assert codes[1] == -9, log.read_text()[-3000:]
    assert codes[0] != 0
    cut = tmp_path / "pair/run/eval/picabench/step_00000400"
    assert not (cut / "manifest.json").exists()
    num_done = len(list((cut / "output_img").glob("*.png")))
    assert 0 < num_done < NUM_ITEMS
    assert codes_of(start(2, benchmark, tmp_path / "pair/run")) == [0, 0], log.read_text()[-3000:]
    assert codes_of(alone) == [0], (tmp_path / "alone/log.txt").read_text()[-3000:]
    first, second = (tmp_path / name / "run/eval" for name in ("alone", "pair"))
    report = json.loads((second / "picabench/step_00000400/report.json").read_text())
    assert report["items"] == {
        "in_use": NUM_ITEMS,
        "edited": {"base": NUM_ITEMS, "tuned": NUM_ITEMS},
        "compared": NUM_ITEMS,
    }
    assert files_of(second) == files_of(first)
