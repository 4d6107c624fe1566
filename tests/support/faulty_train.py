"""``python -m physedit.train`` with faults: ``FAULTS`` names them, each on one rank at one step.

Every save holds a barrier, as gathering a partitioned state does: ranks that do not take part hold up the others.

late_judge:0:4  rank 0 takes SLEEP_S longer in the evaluation of step 4
bad_hook:1:6    rank 1's hook raises at step 6
disk_full:0:8   rank 0 has no space for the checkpoint of step 8
crash:1:3       rank 1 raises in its forward pass of step 3
"""

import os
import sys
import time
from typing import Any

import torch.distributed as dist
from torch import Tensor

from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.train import loop
from physedit.train.checkpoint import CheckpointStore
from physedit.train.cli import train_main
from physedit.train.engine import PlainEngine

SLEEP_S = 30.0
FAULTS = {
    (kind, int(step))
    for kind, rank, step in (fault.split(":") for fault in os.environ.get("FAULTS", "").split())
    if rank == os.environ["RANK"]
}


def has(kind: str, step: int) -> bool:
    return (kind, step) in FAULTS


def install() -> None:
    run, save, forward = PicaBenchHook.run, CheckpointStore.save, loop.forward
    gather = PlainEngine.optimizer_tensors

    def faulty_run(self: PicaBenchHook, context: Any) -> Any:
        if has("late_judge", context.step):
            time.sleep(SLEEP_S)
        if has("bad_hook", context.step):
            raise RuntimeError("the judge has left")
        return run(self, context)

    def faulty_save(self: CheckpointStore, snapshot: Any) -> Any:
        if has("disk_full", snapshot.progress.step):
            raise OSError(28, "No space left on device")
        return save(self, snapshot)

    def faulty_forward(trainer: Any, positioned: Any) -> Any:
        if has("crash", positioned.positions[0] // trainer.global_batch + 1):
            raise RuntimeError("a cosmic ray")
        return forward(trainer, positioned)

    def held_together(self: PlainEngine) -> dict[str, Tensor]:
        dist.barrier()
        sys.stderr.write(f"rank {os.environ['RANK']} was at the barrier of a save\n")
        return gather(self)

    PicaBenchHook.run = faulty_run  # type: ignore[method-assign]
    CheckpointStore.save = faulty_save  # type: ignore[method-assign]
    PlainEngine.optimizer_tensors = held_together  # type: ignore[method-assign]
    loop.forward = faulty_forward


if __name__ == "__main__":
    install()
    train_main()
