"""Checks of what is installed, and of the devices: Python, torch, CUDA, DeepSpeed, shared memory."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from physedit.launch.plan import find_profile
from physedit.train.doctor.finding import Finding, error, ok, refusal, warning
from physedit.train.launching import lacking_gpus, plan

SHARED_MEMORY = Path("/dev/shm")
_DRIVER = Path("/proc/driver/nvidia/version")
_INSTALL = "Install the project again: pip install -c constraints.txt -e ."
_IMPORT_TIMEOUT_S = 180
_PICTURE_BYTES = 3 * 2**20
"""A decoded picture of a megapixel, uint8 RGB."""
_BATCHES_AHEAD = 2
"""Batches that a worker of the loader keeps ready."""
_NCCL_BYTES = 64 * 2**20
"""Ours: what NCCL is granted for each rank; its buffers take up to about 33 MB a pair of ranks."""


def installed(package: str) -> str | None:
    """Returns the version of an installed package, None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python() -> Finding:
    """Verifies that this Python is one that the project runs on."""
    found, wanted = platform.python_version(), importlib.metadata.metadata("physedit")["Requires-Python"]
    if found not in SpecifierSet(wanted):
        return error("python", f"Python {found}, but {wanted} is needed", "Make the environment with a newer Python.")
    return ok("python", f"Python {found}")


def check_packages() -> Finding:
    """Verifies the versions of all packages that the project needs, but for those with a check of their own."""
    wanted = [each for each in _requirements() if each.name not in ("torch", "deepspeed")]
    wrong = [f"{each} ({installed(each.name) or 'absent'} is installed)" for each in wanted if not _is_met(each)]
    if wrong:
        return error("packages", f"not as needed: {', '.join(wrong)}", _INSTALL)
    return ok("packages", f"{len(wanted)} packages as needed")


def check_torch(config: DictConfig) -> Finding:
    """Verifies torch's version, and that its build knows CUDA where this machine has an NVIDIA driver."""
    build = "CPU build" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
    found = f"torch {installed('torch')}, {build}"
    wanted = next(each for each in _requirements() if each.name == "torch")
    if not _is_met(wanted):
        return error("torch", f"{found}, but {wanted} is needed", _INSTALL)
    if torch.version.cuda is None and (_DRIVER.exists() or needs_cuda(config)):
        why = "this machine has an NVIDIA driver" if _DRIVER.exists() else "the run computes on CUDA"
        remedy = "Install the CUDA build of the same version from pytorch.org."
        return (error if needs_cuda(config) else warning)("torch", f"{found}, but {why}", remedy)
    return ok("torch", found)


def check_gpus(config: DictConfig) -> Finding:
    """Verifies that there are as many GPUs as the settings ask for."""
    found = _devices()
    if config.device == "cuda" and not torch.cuda.is_available():
        return error(
            "gpus", f"device=cuda was asked, but {found}", "Use device=auto or device=cpu, or mend the driver."
        )
    if config.launch.kind == "slurm":
        return warning("gpus", f"{found}; the nodes of the job are not looked at", "Run doctor inside a job, too.")
    try:
        lacking = lacking_gpus(config.launch)
    except ValueError as refused:
        return refusal("gpus", refused)
    if lacking is not None:
        return error("gpus", f"{found}: {lacking.split('. ')[0]}", lacking.split(". ")[1])
    return ok("gpus", found)


def check_launch(config: DictConfig, given: Sequence[str], config_dir: Path | None) -> Finding:
    """Verifies that the launch can be planned: processes that share the batch, machines that can meet."""
    launch = config.launch
    if launch.kind == "none":
        return ok("launch", "in the process that the run is started in")
    try:
        plan(config, given, "physedit doctor", config_dir)
    except (ValueError, OSError) as refused:
        return refusal("launch", refused)
    if launch.kind == "slurm" and shutil.which("sbatch") is None:
        return warning("launch", "a job can be written, but there is no sbatch here", "Submit it where there is one.")
    return ok("launch", f"{launch.kind}, {_profile_name(config)}")


def check_nccl(config: DictConfig) -> Finding:
    """Verifies that GPUs can speak with each other, where several processes are to use them."""
    has_nccl = dist.is_available() and dist.is_nccl_available()
    if not has_nccl and needs_cuda(config) and config.launch.kind != "none":
        return error("nccl", "this torch has no NCCL", "Install torch's CUDA build for Linux.")
    if not has_nccl or not torch.cuda.is_available():
        return ok("nccl", "not needed: no GPU is used")
    nccl: Any = torch.cuda.nccl  # its functions have no types
    return ok("nccl", "NCCL " + ".".join(map(str, nccl.version())))


def check_attention() -> Finding:
    """Tells which kernels attention runs on."""
    if not torch.cuda.is_available():
        return ok("attention", "torch's own on the CPU")
    cuda: Any = torch.backends.cuda  # its functions have no types
    kernels = {
        "flash": cuda.is_flash_attention_available() and cuda.flash_sdp_enabled(),
        "memory-efficient": cuda.mem_efficient_sdp_enabled(),
        "cuDNN": cuda.cudnn_sdp_enabled(),
    }
    names = [name for name, is_on in kernels.items() if is_on]
    lacks_bf16 = not torch.cuda.is_bf16_supported(including_emulation=False)
    if not names or lacks_bf16:
        said = "no bfloat16 on this GPU" if lacks_bf16 else "plain attention alone, which takes much memory"
        return warning("attention", said, "Use a GPU of compute capability 8.0 or above, and torch's CUDA build.")
    return ok("attention", f"torch's own: {', '.join(names)}")


def check_deepspeed(config: DictConfig) -> Finding:
    """Verifies that DeepSpeed can be imported, and can build what it builds itself, where the launch takes it."""
    profile = _profile_name(config)
    try:
        chosen = None if profile is None else find_profile(profile)
        stage = 0 if chosen is None else chosen.zero_stage
    except (ValueError, KeyError) as refused:
        return refusal("deepspeed", refused)
    if stage == 0:
        return ok("deepspeed", f"not needed; {installed('deepspeed') or 'not'} installed")
    if importlib.util.find_spec("deepspeed") is None:
        return error("deepspeed", f"launch={profile} needs it, but it is not installed", _INSTALL)
    environment = {str(name): str(value) for name, value in config.launch.env.items()}
    if fault := import_fault("deepspeed", environment):
        return error("deepspeed", f"it cannot be imported: {fault}", _INSTALL)
    lacking = list(_lacking_tools()) if config.launch.device == "cpu" else []
    if lacking:
        what = f"launch={profile} builds an operator at its first start, but there is no {' and no '.join(lacking)}"
        return warning("deepspeed", what, "Install them: pip install ninja, and the system's g++.")
    return ok("deepspeed", f"DeepSpeed {installed('deepspeed')}, ZeRO-{stage}")


def import_fault(module: str, environment: Mapping[str, str]) -> str:
    """Returns why a process of its own cannot import a module; empty if it can."""
    command = [sys.executable, "-P", "-c", f"import {module}"]
    try:
        done = subprocess.run(
            command,
            env=os.environ | dict(environment),
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done within {_IMPORT_TIMEOUT_S} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def check_shared_memory(config: DictConfig) -> Finding:
    """Verifies that batches of loader processes, and NCCL's buffers, fit into shared memory."""
    if not SHARED_MEMORY.is_dir():
        return ok("shared memory", f"no {SHARED_MEMORY} on this system")
    free = shutil.disk_usage(SHARED_MEMORY).free
    ranks = num_ranks(config)
    batches = int(config.num_workers) * _BATCHES_AHEAD * int(config.micro_batch) * 2 * _PICTURE_BYTES
    needed = ranks * (batches + (_NCCL_BYTES if ranks > 1 else 0))
    found = f"{free / 2**20:.0f} MiB free in {SHARED_MEMORY}"
    if free < needed:
        return error(
            "shared memory",
            f"{found}, but {ranks} process(es) with num_workers={config.num_workers} may take {needed / 2**20:.0f} MiB",
            "Start the container with --shm-size=16g or --ipc=host, or lower num_workers.",
        )
    return ok("shared memory", f"{found}, at most about {needed / 2**20:.0f} needed")


def needs_cuda(config: DictConfig) -> bool:
    """True if the settings ask for GPUs."""
    return bool(config.device == "cuda" or (config.launch.kind == "local" and config.launch.device == "cuda"))


def num_ranks(config: DictConfig) -> int:
    """Returns how many processes the launch starts on this machine, 1 where it cannot be told."""
    launch = config.launch
    if launch.kind != "local":
        return 1
    on_all = launch.num_processes or torch.cuda.device_count() * launch.num_machines
    return max(1, int(on_all) // int(launch.num_machines))


def _profile_name(config: DictConfig) -> str | None:
    launch = config.launch
    if launch.kind == "none":
        return None
    return str(launch.slurm.profile if launch.kind == "slurm" else launch.profile)


def _lacking_tools() -> Iterator[str]:
    beside = Path(sys.executable).parent
    if shutil.which("ninja") is None and not (beside / "ninja").exists():
        yield "ninja"
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
        yield "C++ compiler"


def _devices() -> str:
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    sizes = ", ".join(f"{each.name} {each.total_memory / 2**30:.0f} GiB" for each in names)
    driver = _DRIVER.read_text(encoding="utf-8").splitlines()[0].split("Module")[-1].split() if _DRIVER.exists() else []
    version = next((word for word in driver if word[0].isdigit()), "unknown")
    return f"{len(names)} GPU(s): {sizes}; driver {version}"


def _requirements() -> list[Requirement]:
    listed = [Requirement(text) for text in importlib.metadata.requires("physedit") or ()]
    return [each for each in listed if each.marker is None or "extra" not in str(each.marker)]


def _is_met(wanted: Requirement) -> bool:
    version = installed(wanted.name)
    return version is not None and wanted.specifier.contains(version, prereleases=True)
