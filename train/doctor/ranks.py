"""``physedit doctor --distributed``: starts the chosen launch, and judges what its ranks measured."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from omegaconf import DictConfig

from physedit.launch.plan import TRAINER, LaunchPlan, Machines, Run, find_profile, plan_local
from physedit.train import launching
from physedit.train.config import ConfigError
from physedit.train.doctor.finding import Finding, error, ok, refusal, warning
from physedit.train.doctor.places import nearest
from physedit.train.doctor.rank import RankFound
from physedit.train.run_folder import run_folder_of

_WORKER = "physedit.train.doctor.rank"
_TIMEOUT_S = 300
_SLOW_BARRIER_S = 0.05
_MOST_SKEW_S = 2.0
_UNLIKE = 2.0
"""Ours: a rank whose bandwidth is below the median by this factor is worth a look."""
_GLOO_ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def check_ranks(config: DictConfig, given: Sequence[str], config_dir: Path | None = None) -> list[Finding]:
    """Starts the processes of the launch, or two on the CPU without one, and returns a line for each rank and more."""
    if config.launch.kind == "slurm":
        remedy = "Run it within a job, with launch=PROFILE instead of launch=slurm."
        return [warning("ranks", "not tried: launch=slurm starts its processes on other machines", remedy)]
    place = nearest(run_folder_of(config))
    try:
        with tempfile.TemporaryDirectory(prefix="physedit_doctor_") as folder:
            result = Path(folder) / "ranks.json"
            fault = _run(_plan(config, given, config_dir), result, place)
            if fault is not None:
                return [fault]
            if not result.exists():
                return [ok("ranks", "met; machine 0 tells what they measured")]
            found = [RankFound(**each) for each in json.loads(result.read_text(encoding="utf-8"))]
    except (ValueError, OSError) as refused:
        return [refusal("ranks", refused)]
    return judged(found, place)


def judged(found: Sequence[RankFound], folder: Path) -> list[Finding]:
    """Returns a line for each rank, and one for how they compare. Pure.

    Args:
        found: what each rank measured, at least one.
        folder: where they wrote.
    """
    usual = median(each.bandwidth_gb_s for each in found)
    lines = [_of_rank(each, usual, folder) for each in found]
    clocks = [each.clock_s for each in found]
    skew_s = max(clocks) - min(clocks)
    if skew_s > _MOST_SKEW_S:
        remedy = "Set the clocks of all machines by NTP."
        return [*lines, error("ranks' clocks", f"up to {skew_s:.1f} s apart", remedy)]
    return [*lines, ok("ranks' clocks", f"at most {skew_s * 1e3:.0f} ms apart, the wait for each other included")]


def _of_rank(found: RankFound, usual_gb_s: float, folder: Path) -> Finding:
    check = f"rank {found.rank}"
    said = (
        f"{found.host}, {found.device}: barrier {found.barrier_s * 1e3:.2f} ms, "
        f"all-reduce {found.bandwidth_gb_s:.2f} GB/s"
    )
    if found.fault:
        return error(check, f"{said}; {folder} cannot be written: {found.fault}", "Mend the rights of output_root.")
    if not found.sees_all:
        remedy = "Put output_root on storage that all machines share."
        return error(check, f"{said}; it does not see what other ranks write in {folder}", remedy)
    if found.file_skew_s is not None and abs(found.file_skew_s) > _MOST_SKEW_S:
        remedy = "Set the clocks of this machine and of the file server by NTP."
        return warning(check, f"{said}; its files are {found.file_skew_s:+.1f} s off its clock", remedy)
    if found.barrier_s > _SLOW_BARRIER_S or found.bandwidth_gb_s * _UNLIKE < usual_gb_s:
        remedy = "Look at the network and at what else this machine does: NCCL_DEBUG=INFO tells the links."
        return warning(check, f"{said}, which is slow", remedy)
    return ok(check, said)


def _plan(config: DictConfig, given: Sequence[str], config_dir: Path | None) -> LaunchPlan:
    """Returns the launch's plan, with our worker in place of the trainer and nothing to write."""
    folder = run_folder_of(config)
    if config.launch.kind == "local":
        lacking = launching.lacking_gpus(config.launch)
        if lacking is not None:
            raise ConfigError(lacking)
        plan = launching.plan(config, given, "physedit doctor", config_dir)
    else:
        run = Run(folder, (), (), "physedit doctor", "", sys.executable)
        plan = plan_local(find_profile("cpu_ddp2"), Machines(2), run, _GLOO_ENVIRONMENT, has_rank_logs=False)
    return LaunchPlan(plan.argv[: plan.argv.index(TRAINER)], plan.environment, {})


def _run(plan: LaunchPlan, result: Path, folder: Path) -> Finding | None:
    """Runs the ranks; returns the error they ended with, None if all is measured."""
    log = result.with_name("log")
    environment = os.environ | dict(plan.environment) | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*plan.argv, _WORKER, str(result), str(folder)],
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code == 0:
        return None
    told = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    reason = next((line for line in reversed(told) if "Error" in line), told[-1] if told else "nothing was said")
    how = f"not done within {_TIMEOUT_S} s" if code is None else f"ended with exit code {code}"
    remedy = "Look at addresses and network of the machines; +launch.env.NCCL_DEBUG=INFO tells more."
    return error("ranks", f"{how}: {reason.strip()[:300]}", remedy)
