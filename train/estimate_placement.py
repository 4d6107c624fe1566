"""How the processes of a launch share what a run takes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from physedit.launch.plan import find_profile
from physedit.train.launching import machines_of


@dataclass(frozen=True, slots=True)
class Placement:
    """How processes share what there is.

    Attributes:
        profile: of launch/accelerate, or ``one process``.
        num_processes: over all machines.
        zero_stage: of DeepSpeed's ZeRO; 0 without it.
        zero: DeepSpeed's settings of ZeRO, as the launch gives them.
        on_gpu: False where the processes compute on CPUs.
        tf32: products of float32 run on the tensor cores of GPUs; ``float32_matmul_precision``.
    """

    profile: str
    num_processes: int
    zero_stage: int
    zero: Mapping[str, Any]
    on_gpu: bool
    tf32: bool

    def offloads(self, what: str) -> bool:
        """True if DeepSpeed keeps ``param`` or ``optimizer`` in the machine's memory."""
        return bool(self.zero.get(f"offload_{what}", {}).get("device", "none") != "none")


def placement_of(config: DictConfig) -> Placement:
    """Returns how the launch of ``config`` shares what there is.

    Raises:
        ConfigError: no number of processes was given and there is no GPU to count.
    """
    launch = config.launch
    tf32 = str(config.float32_matmul_precision) != "highest"
    if launch.kind == "none":
        return Placement("one process", 1, 0, {}, str(config.device) != "cpu", tf32)
    if launch.kind == "slurm":
        job = launch.slurm
        name, ranks = job.profile, job.processes_per_node or job.gpus_per_node or 1
        num_processes = int(job.nodes * ranks)
    else:
        name, num_processes = str(launch.profile), machines_of(launch).num_processes
    profile = find_profile(str(name))
    zero: dict[str, Any] = {}
    if profile.deepspeed_file is not None:
        zero = json.loads(profile.deepspeed_file.read_text(encoding="utf-8"))["zero_optimization"]
    return Placement(str(name), num_processes, profile.zero_stage, zero, launch.device != "cpu", tf32)
