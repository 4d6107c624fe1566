"""One rank of ``physedit doctor --distributed``: measures what it has in common with the others.

    accelerate launch ... -m physedit.train.doctor.rank RESULT_FILE FOLDER

All ranks call it. Rank 0 writes the result as JSON. ``FOLDER`` exists; what ranks write there is removed.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from physedit.launch.local import end_with_parent
from physedit.train.doctor.places import PROBE, skew_of

_NUM_BARRIERS = 20
_NUM_REDUCES = 5
_REDUCED_BYTES = {"cpu": 2**24, "cuda": 2**28}
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class RankFound:
    """What one rank measured.

    Attributes:
        rank: which.
        host: the machine.
        device: what it reduces on.
        barrier_s: mean time of a barrier.
        bandwidth_gb_s: bytes that go through each rank's link in an all-reduce, over its time, in 10^9 a second.
        clock_s: its system's time just after a barrier.
        file_skew_s: time of a file it wrote in the folder less its own clock; None if it could not.
        sees_all: whether it sees the files of all ranks in the folder.
        fault: why it could not write there; empty if it could.
    """

    rank: int
    host: str
    device: str
    barrier_s: float
    bandwidth_gb_s: float
    clock_s: float
    file_skew_s: float | None
    sees_all: bool
    fault: str


def main(result: Path, folder: Path) -> None:
    """Measures, and on rank 0 writes what all ranks found to ``result``."""
    end_with_parent()
    device = _device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S))
    found: list[RankFound | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, _measured(device, folder))
    if dist.get_rank() == 0:
        result.write_text(json.dumps([asdict(each) for each in found if each is not None]), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def bus_bandwidth_gb_s(num_bytes: int, seconds: float, num_ranks: int) -> float:
    """Returns what a ring would carry over each link, in 10^9 bytes a second.

    Source: NCCL tests, doc/PERFORMANCE.md: an all-reduce moves 2 (n - 1) / n of its bytes over each.
    """
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / seconds / 1e9


def _device() -> torch.device:
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_TORCH_DEVICE") == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _measured(device: torch.device, folder: Path) -> RankFound:
    barrier_s, bandwidth = _time_barrier(), _time_reduce(device)
    dist.barrier()
    clock_s = time.time()
    skew_s, sees_all, fault = _try_folder(folder)
    return RankFound(
        dist.get_rank(), os.uname().nodename, str(device), barrier_s, bandwidth, clock_s, skew_s, sees_all, fault
    )


def _time_barrier() -> float:
    dist.barrier()  # the first one connects the ranks
    started = time.perf_counter()
    for _ in range(_NUM_BARRIERS):
        dist.barrier()
    return (time.perf_counter() - started) / _NUM_BARRIERS


def _time_reduce(device: torch.device) -> float:
    num_bytes = _REDUCED_BYTES[device.type]
    values = torch.zeros(num_bytes // 4, device=device)
    dist.all_reduce(values)
    _finish(device)
    started = time.perf_counter()
    for _ in range(_NUM_REDUCES):
        dist.all_reduce(values)
    _finish(device)
    seconds = (time.perf_counter() - started) / _NUM_REDUCES
    return bus_bandwidth_gb_s(num_bytes, seconds, dist.get_world_size())


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _try_folder(folder: Path) -> tuple[float | None, bool, str]:
    """Writes beside the other ranks; returns the file's skew, whether all files are seen, and the fault if any."""
    names: list[str | None] = [tempfile.mkdtemp(dir=folder, prefix=PROBE) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    assert names[0] is not None
    common = Path(names[0])
    skew_s, fault = None, ""
    try:
        skew_s = skew_of(common)
        (common / str(dist.get_rank())).touch()
    except OSError as failed:
        fault = f"{type(failed).__name__}: {failed.strerror}"
    dist.barrier()
    sees_all = all((common / str(rank)).exists() for rank in range(dist.get_world_size()))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(common)
    return skew_s, sees_all, fault


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
