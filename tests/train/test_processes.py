"""Agreement of two real processes over gloo: patient waits, failures that reach the others, ranks that are gone."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from physedit.eval_hooks.ranks import FailedElsewhere
from physedit.train import processes as module
from physedit.train.processes import Processes
from physedit.train.signals import Stopped

TIMEOUT_S = 2.0


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets spawned ranks, which get this process's path, find this module: the working folder need not be on it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def join(rank: int, port_file: Path) -> Processes:
    module.BEAT_S, module.LOST_AFTER_S, module.GRACE_S = 0.2, 2.0, 1.0
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", _port(rank, port_file), 2, is_master=rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT_S))
    return Processes(2, rank)


def _port(rank: int, port_file: Path) -> int:
    if rank == 0:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port_file.with_suffix(".new").write_text(str(free.getsockname()[1]))
        port_file.with_suffix(".new").rename(port_file)
    while not port_file.exists():
        time.sleep(0.01)
    return int(port_file.read_text())


def patient(rank: int, port_file: Path) -> None:
    processes = join(rank, port_file)
    assert processes.largest(rank * 7) == 7
    if rank == 0:
        time.sleep(2 * TIMEOUT_S)  # what a collective would not survive
    processes.wait()

    def fails_on_rank_1() -> int:
        processes.wait()
        if rank == 1:
            raise ValueError("no judge")
        processes.wait()  # rank 1 never comes
        return 0

    result, errors = processes.attempt(fails_on_rank_1)
    assert result is None
    assert "rank 1: ValueError: no judge" in str(errors[-1])
    assert isinstance(errors[0], ValueError if rank == 1 else FailedElsewhere)
    assert processes.attempt(lambda: "fine") == ("fine", [])  # the next ones agree again

    def stops_on_rank_0() -> None:
        if rank == 0:
            raise Stopped("a signal")
        processes.wait()

    with pytest.raises(Stopped):
        processes.attempt(stops_on_rank_0)
    with pytest.raises(OSError if rank == 0 else FailedElsewhere, match="No space left"):
        processes.together(lambda: _no_space(rank))
    processes.close()


def _no_space(rank: int) -> None:
    if rank == 0:
        raise OSError(28, "No space left on device")


def told(rank: int, port_file: Path) -> None:
    processes = join(rank, port_file)
    processes.wait()
    if rank == 1:
        processes.tell_failure(ValueError("broken here"))
        time.sleep(3)
        return
    with pytest.raises(FailedElsewhere, match="rank 1: ValueError: broken here"):
        processes.wait()
    os._exit(0)


def killed(rank: int, port_file: Path) -> None:
    processes = join(rank, port_file)
    processes.wait()
    if rank == 1:
        os._exit(9)
    time.sleep(60)  # as in a collective on a device: nothing raises, and the watch has to end it


@pytest.mark.parametrize("story", [patient, told])
def test_ranks_agree(story, tmp_path: Path) -> None:
    mp.spawn(story, args=(tmp_path / "port",), nprocs=2)


def test_a_rank_that_is_killed_ends_one_that_hangs(tmp_path: Path) -> None:
    started = time.monotonic()
    context = mp.get_context("spawn")
    ranks = [context.Process(target=killed, args=(rank, tmp_path / "port")) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=50)
    assert [rank.exitcode for rank in ranks] == [1, 9]
    assert time.monotonic() - started < 50
