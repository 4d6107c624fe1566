"""``python -m physedit.train`` with faults of rank 1: in evaluations under ZeRO-3, and by SIGKILL.

    FAULT=edit      between the forward passes of an edit at step 4, and within one at step 6
    FAULT=kill      it is killed in its forward pass of step 3

Before the fault that ends the run it writes ``FAULT_FILE``. Every rank says how many numbers of the denoiser are whole
when it is moved to the device.
"""

import atexit
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from physedit.eval_hooks.picabench import generate
from physedit.models.parts import PipelineParts
from physedit.train import loop
from physedit.train.cli import train_main

RANK = os.environ["RANK"]


def mark() -> None:
    Path(os.environ["FAULT_FILE"]).touch()


def install_edit() -> None:
    edit = generate._edit

    def faulty_edit(context: Any, task: Any, batch: Any) -> Tensor:
        if RANK == "1" and context.step == 4:
            raise RuntimeError("the picture is gone")
        if RANK == "1" and context.step == 6:
            context.denoiser.proj_out.register_forward_pre_hook(fail)
        return edit(context, task, batch)

    generate._edit = faulty_edit


def fail(_module: nn.Module, _inputs: object) -> None:
    mark()
    atexit.register(time.sleep, 6)  # it is long in leaving, as one with much on a device
    raise RuntimeError("a cosmic ray in the last layer")


def install_kill() -> None:
    forward = loop.forward

    def faulty_forward(trainer: Any, positioned: Any) -> Any:
        if RANK == "1" and positioned.positions[0] // trainer.global_batch == 2:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(trainer, positioned)

    loop.forward = faulty_forward


def install_spy() -> None:
    move = PipelineParts.to

    def watched(self: PipelineParts, device: torch.device) -> None:
        whole = sum(parameter.numel() for parameter in self.denoiser.parameters())
        sys.stderr.write(f"rank {RANK} moves a denoiser of {whole} numbers\n")
        move(self, device)

    PipelineParts.to = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    {"edit": install_edit, "kill": install_kill}[os.environ["FAULT"]]()
    install_spy()
    train_main()
