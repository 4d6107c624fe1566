"""Ctrl-C while ``physedit judge`` asks: nothing more is sent, and a server that says nothing is not waited for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.judge_server import Reply, busy, failing, judge_server
from tests.support.plain_outputs import judge_at, write_outputs

PROGRAM = """
import signal
from physedit.train.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # one that is started in the background ignores it
main()
"""


@pytest.mark.parametrize(
    ("later", "concurrency"),
    [(Reply(delay_s=60.0), 4), (busy(40.0), 1), (failing(503), 4)],
    ids=["silent", "rate limited", "away"],
)
def test_ctrl_c_ends_at_once_and_sends_nothing_more(tmp_path: Path, later: Reply, concurrency: int) -> None:
    outputs, journal = write_outputs(tmp_path / "outputs"), tmp_path / "outputs/items.0.jsonl"
    with judge_server([Reply()] * 5, later) as server:
        judge = judge_at(server, f"judge.concurrency={concurrency}", "judge.cache_folder=null", "judge.patience_s=300")
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "judge", str(outputs), *judge],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + 60.0
            while len(server.asked) < 6 or journal.read_text().count("\n") < 5:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            time.sleep(0.5)
            num_asked, started = len(server.asked), time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20.0) == 130
            assert time.monotonic() - started < 10.0  # two seconds of its own, and those of a busy machine
        finally:
            process.kill()
            process.wait()
        assert len(server.asked) - num_asked <= concurrency  # a try that was being sent just then
    kept = [json.loads(line)["verdict"] for line in journal.read_text().splitlines()]
    assert kept.count("yes") == 5
