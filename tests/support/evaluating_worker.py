"""One rank of an evaluation with a tiny editor: ``python evaluating_worker.py RANK WORLD_SIZE PORT BENCHMARK RUN``.

With KILL_AT in the environment, rank 1 is killed before its so-manieth edit.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
from tests.support.memory_editors import flux, with_adapter
from tests.support.stand_ins import RedJudge

from physedit.eval_hooks.hook import Cadence, EvalContext, weights_digest
from physedit.eval_hooks.picabench import generate
from physedit.eval_hooks.picabench.hook import PicaBenchHook
from physedit.models.lora import adapter_state, without_adapter


def install_kill(at: int) -> None:
    edit, calls = generate._edit, []

    def deadly(context: EvalContext, task: generate.EditTask, batch: generate.Batch) -> torch.Tensor:
        calls.append(None)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return edit(context, task, batch)

    generate._edit = deadly


def main(rank: int, world_size: int, port: str, benchmark: str, run_folder: Path) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    wait = timedelta(seconds=240)
    torch.distributed.init_process_group("gloo", address, timeout=wait, rank=rank, world_size=world_size)
    if rank == 1 and "KILL_AT" in os.environ:
        install_kill(int(os.environ["KILL_AT"]))
    editor = with_adapter(flux(), is_filled=True)
    hook = PicaBenchHook(
        name="picabench",
        benchmark=benchmark,
        judge=RedJudge(),
        cadence=Cadence(),
        num_steps=2,
        reference=True,
        keep_encoded=True,
    )
    hook.run(
        EvalContext(
            step=400,
            backbone=editor,
            denoiser=editor.denoiser,
            without_adapter=lambda: without_adapter(editor.denoiser),
            run_folder=run_folder,
            base_cache=run_folder.parent / "base_cache",
            rank=rank,
            world_size=world_size,
            barrier=torch.distributed.barrier,
            adapter_id=weights_digest(adapter_state(editor.denoiser)),
        )
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
