"""Agreement between the processes of a run, without waiting for a device."""

import torch
import torch.distributed as dist


class Processes:
    """The ranks of a run as the loop needs them between steps. Every rank makes one, and calls it alike."""

    def __init__(self, num_processes: int) -> None:
        # A group of its own on the CPU: a collective on the GPU would wait for all work queued there.
        self._group = dist.new_group(backend="gloo") if num_processes > 1 else None

    def largest(self, value: int) -> int:
        """Returns the largest ``value`` over all ranks."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._group)
        return int(shared.item())
