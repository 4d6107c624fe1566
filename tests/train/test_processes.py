"""Agreement of two real processes over gloo: patient waits, failures that reach the others, ranks that are gone."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from physedit.eval_hooks.ranks import FailedElsewhere
from physedit.train import watch
from physedit.train.processes import Processes
from physedit.train.signals import Stopped
from physedit.train.watch import OutOfStep

TIMEOUT_S = 2.0


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets spawned ranks, which get this process's path, find this module: the working folder need not be on it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def join(rank: int, port_file: Path, timeout_s: float = TIMEOUT_S) -> Processes:
    watch.BEAT_S, watch.LOST_AFTER_S, watch.GRACE_S, watch.EXPLAIN_S = 0.2, 2.0, 1.0, 4.0
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", _port(rank, port_file), 2, is_master=rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=timeout_s))
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


class Cut(nn.Module):
    """Needs both ranks in each forward pass, as a denoiser under ZeRO-3 does."""

    def __init__(self) -> None:
        super().__init__()
        self.num_passes = 0
        self.fails = False

    def forward(self, value: Tensor) -> Tensor:
        if self.fails:
            raise ValueError("no memory")
        dist.all_reduce(value)
        self.num_passes += 1
        return value


def passing(rank: int, port_file: Path) -> None:
    processes = join(rank, port_file)
    module = Cut()
    assert processes.gather(f"of {rank}") == ["of 0", "of 1"]

    def make(num_passes: int) -> int:
        for _ in range(num_passes):
            module(torch.ones(1))
        return num_passes

    def fails_between_passes() -> int:
        make(1)
        if rank == 1:
            raise ValueError("no picture")
        return make(2)

    result, errors = processes.attempt(fails_between_passes, module)
    assert result is None
    assert module.num_passes == 1
    assert "rank 1: ValueError: no picture" in str(errors[-1])
    assert processes.attempt(lambda: make(2), module) == (2, [])

    def fails_and_waits_to_say_so() -> None:
        try:
            make(1 + rank)
            if rank == 1:
                raise ValueError("no picture")
        except Exception:
            processes.wait()  # as the ranks of an evaluation do
            raise

    module.num_passes = 0
    result, errors = processes.attempt(fails_and_waits_to_say_so if rank == 1 else lambda: make(3), module)
    assert result is None
    assert isinstance(errors[0], ValueError if rank == 1 else FailedElsewhere)
    assert "rank 1: ValueError: no picture" in str(errors[-1])
    assert module.num_passes == 2

    def stops_between_passes() -> None:
        make(1)
        if rank == 0:
            raise Stopped("a file")
        make(1)

    with pytest.raises(Stopped):
        processes.attempt(stops_between_passes, module)
    result, errors = processes.attempt(lambda: make(1 + rank), module)
    assert result is None
    assert isinstance(errors[0], OutOfStep if rank == 1 else FailedElsewhere)
    assert "the same number of forward passes" in str(errors[-1])

    def waits_or_passes() -> None:
        processes.wait() if rank == 0 else make(1)

    assert "OutOfStep" in str(processes.attempt(waits_or_passes, module)[1][-1])
    num_keys = dist.distributed_c10d._get_default_store().num_keys()
    assert processes.attempt(lambda: make(30), module) == (30, [])
    processes.wait()
    assert dist.distributed_c10d._get_default_store().num_keys() < num_keys + 10  # meetings that are over are forgotten
    processes.close()


def fails_within(rank: int, port_file: Path) -> None:
    processes = join(rank, port_file, timeout_s=3600)
    module = Cut()
    module.fails = rank == 1
    with pytest.raises(ValueError, match="no memory"):
        processes.attempt(lambda: module(torch.ones(1)), module)
    os._exit(9)  # as the trainer, which ends with the error


@pytest.mark.parametrize("story", [patient, told, passing])
def test_ranks_agree(story, tmp_path: Path) -> None:
    mp.spawn(story, args=(tmp_path / "port",), nprocs=2)


@pytest.mark.parametrize("story", [killed, fails_within])
def test_a_rank_that_has_gone_ends_one_that_hangs(story, tmp_path: Path) -> None:
    started = time.monotonic()
    context = mp.get_context("spawn")
    ranks = [context.Process(target=story, args=(rank, tmp_path / "port")) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=50)
    assert [rank.exitcode for rank in ranks] == [1, 9]
    assert time.monotonic() - started < 50
