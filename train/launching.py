"""The parent's door: validates a run once, then starts its processes with accelerate, or submits it as a job."""

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from physedit.launch import local
from physedit.launch.plan import (
    COMMAND_VARIABLE,
    LaunchError,
    LaunchPlan,
    Machines,
    Profile,
    Run,
    check_counts,
    find_profile,
    plan_local,
    without_launch,
)
from physedit.launch.slurm import SlurmJob, Trial, plan_slurm
from physedit.models.quantization import check_sharding
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError, LaunchConfig
from physedit.train.optim import check_element_wise
from physedit.train.rules import batches_per_step
from physedit.train.run_folder import check_is_free, run_folder_of

logger = logging.getLogger(__name__)

EXIT_NOT_SUBMITTED = 2


def command_of_parent() -> str | None:
    """Returns what the user typed, in a process that a validating parent started; else None."""
    return os.environ.get(COMMAND_VARIABLE)


def check_launch(config: DictConfig) -> None:
    """Verifies, before anything is opened, that the launch can be made from here with these settings.

    Raises:
        ConfigError: a launcher inside a launcher, or a setting that has no effect or contradicts another.
    """
    launch = config.launch
    if launch.kind not in ("none", "local", "slurm"):
        raise ConfigError(f"launch.kind={launch.kind} is not known. Choose an option of conf/launch with launch=NAME.")
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK")
    if launch.kind != "none" and rank is not None:
        raise ConfigError(
            f"launch={launch.profile or launch.kind} was asked in a process that a launcher has started already (it "
            f"has rank {rank}). Leave launch out (or launch=none) under accelerate launch, or start `physedit train "
            "launch=...` without one."
        )
    _refuse_idle_settings(launch)
    if launch.kind == "local":
        _check_device(config)


def check_starts_here(config: DictConfig, verb: str) -> None:
    """Verifies that a verb which starts no processes was not asked to.

    Raises:
        ConfigError: the config chooses a launch.
    """
    if config.launch.kind != "none":
        raise ConfigError(
            f"launch={config.launch.profile or config.launch.kind} has no effect on `physedit {verb}`, which runs in "
            f"the processes it is started in. Leave it out (or launch=none), and for several processes start it with "
            f"accelerate launch."
        )


def plan(config: DictConfig, given: Sequence[str], command: str, config_dir: Path | None) -> LaunchPlan:
    """Returns how the run of a validated config is started. Pure, but for counting GPUs and reading small files.

    Raises:
        ValueError: processes, machines or trials that cannot be.
    """
    launch = config.launch
    run = Run(
        folder=run_folder_of(config),
        overrides=without_launch(given),
        options=() if config_dir is None else ("--config-dir", str(config_dir.resolve())),
        command=command,
        config=OmegaConf.to_yaml(config, resolve=True),
        python=sys.executable,
    )
    environment = {str(name): str(value) for name, value in launch.env.items()}
    if launch.kind == "slurm":
        job = _slurm_job(launch.slurm)
        if job.requeue and config.resume == "never":
            raise ConfigError(
                "launch.slurm.requeue=true lets a job go on where it stopped, but resume=never refuses that. Use "
                "resume=auto, or launch.slurm.requeue=false."
            )
        _check_processes(config, find_profile(job.profile), job.nodes * job.processes_per_node)
        trials = _trials(launch.slurm.trials, run.overrides, config_dir)
        return plan_slurm(job, run, environment, trials=trials, working_folder=Path.cwd())
    profile, machines = find_profile(str(launch.profile)), machines_of(launch)
    _check_processes(config, profile, machines.num_processes)
    return plan_local(profile, machines, run, environment, has_rank_logs=bool(launch.rank_logs))


def machines_of(launch: DictConfig) -> Machines:
    """Returns the processes of a local launch; without a number, one for each GPU of this machine, on all machines.

    Raises:
        ValueError: numbers that cannot be, or none where there is no GPU.
    """
    asked = launch.num_processes
    check_counts(launch.num_machines if asked is None else asked, launch.num_machines)
    if asked is None:
        asked = torch.cuda.device_count() * launch.num_machines
        if asked == 0:
            raise ConfigError(
                f"launch={launch.profile} starts one process per GPU, but torch sees no GPU here. Give "
                "launch.num_processes=N for another machine's plan, or try the launch with launch=cpu_ddp2."
            )
    return Machines(
        int(asked),
        int(launch.num_machines),
        int(launch.machine_rank),
        launch.main_process_ip,
        int(launch.main_process_port),
    )


def lacking_gpus(launch: DictConfig) -> str | None:
    """Returns why this machine cannot start a local launch that needs GPUs, or None if it can."""
    if launch.kind != "local" or launch.device != "cuda":
        return None
    machines = machines_of(launch)
    wanted, found = machines.num_processes // machines.num_machines, torch.cuda.device_count()
    if wanted <= found:
        return None
    return (
        f"launch={launch.profile} is to start {wanted} processes on this machine, one per GPU, but torch sees {found} "
        f"GPU(s) here. Set launch.num_processes to what there is, or try the launch with launch=cpu_ddp2."
    )


def start(config: DictConfig, plan: LaunchPlan) -> int:
    """Starts or submits a plan of ``config``; returns the exit code of the first rank that failed, or of sbatch.

    Raises:
        ConfigError: another process is writing this run, or this machine lacks the GPUs.
    """
    check_is_free(run_folder_of(config))
    if config.launch.kind == "slurm":
        return _submit(plan)
    lacking = lacking_gpus(config.launch)
    if lacking is not None:
        raise ConfigError(lacking)
    return local.start(plan)


def _submit(plan: LaunchPlan) -> int:
    local.write_files(plan.files)
    if shutil.which(plan.argv[0]) is None:
        logger.error(
            "The job is written, but there is no sbatch on this machine, so nothing was submitted. Where there is one, "
            "run: %s",
            shlex.join(plan.argv),
        )
        return EXIT_NOT_SUBMITTED
    return subprocess.run(plan.argv, check=False).returncode


def _check_processes(config: DictConfig, profile: Profile, num_processes: int) -> None:
    batches_per_step(config, num_processes)
    if profile.zero_stage:
        check_element_wise(config.optimizer)
    try:
        check_sharding(config.backbone.get("quantization"), profile.zero_stage)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_device(config: DictConfig) -> None:
    launch = config.launch
    if launch.device != "any" and config.device not in ("auto", launch.device):
        raise ConfigError(
            f"device={config.device} was asked, but launch={launch.profile} computes on {launch.device}. Use "
            "device=auto, or another launch (cpu_ddp2, cpu_zero2, cpu_zero3 on the CPU)."
        )


def _refuse_idle_settings(launch: DictConfig) -> None:
    """Refuses settings that the chosen launch does not read."""
    default = OmegaConf.structured(LaunchConfig)
    everything = [f.name for f in fields(LaunchConfig) if f.name != "kind"]
    machine = ["machine_rank", "main_process_ip", "main_process_port"]
    if launch.kind == "none":
        idle = everything
    elif launch.kind == "slurm":
        idle = ["profile", "device", "num_processes", "num_machines", "rank_logs", *machine]
    else:
        # One machine may name its port.
        idle = ["slurm", *(machine[:2] if launch.num_machines == 1 else [])]
    found = [each for name in idle for each in _changed(f"launch.{name}", launch[name], default[name])]
    if not found:
        return
    remedy = {
        "none": "Choose a launch with launch=NAME, or leave it out.",
        "slurm": "A job takes launch.slurm.profile, .nodes, .gpus_per_node and .processes_per_node.",
        "local": "launch.slurm.* belongs to launch=slurm; rank and address to launch.num_machines above 1.",
    }[launch.kind]
    raise ConfigError(f"{', '.join(found)} has no effect with this launch (launch.kind={launch.kind}). {remedy}")


def _changed(key: str, value: object, default: object) -> list[str]:
    """Returns ``key=value`` of what differs, each setting of a group by itself."""
    if isinstance(default, DictConfig) and isinstance(value, DictConfig) and default:
        return [each for name in map(str, default) for each in _changed(f"{key}.{name}", value[name], default[name])]
    return [] if value == default else [f"{key}={value}"]


def _slurm_job(slurm: DictConfig) -> SlurmJob:
    ranks = slurm.gpus_per_node if slurm.processes_per_node is None else slurm.processes_per_node
    for key, value, least in (
        ("nodes", slurm.nodes, 1), ("gpus_per_node", slurm.gpus_per_node, 0), ("processes_per_node", ranks, 1),
        ("signal_s", slurm.signal_s, 0), ("cpus_per_task", slurm.cpus_per_task, 1),
        ("max_parallel", slurm.max_parallel, 1),
    ):  # fmt: skip
        if value is not None and value < least:
            raise ConfigError(f"launch.slurm.{key}={value} must be at least {least}.")
    if slurm.requeue and not slurm.signal_s:
        raise ConfigError(
            "launch.slurm.requeue=true has no effect with launch.slurm.signal_s=0: nothing tells the run to save "
            "before its time is over. Give it some seconds, or set requeue=false."
        )
    if slurm.max_parallel is not None and slurm.trials is None:
        raise ConfigError("launch.slurm.max_parallel has no effect without launch.slurm.trials. Leave it out.")
    return SlurmJob(
        profile=slurm.profile, nodes=slurm.nodes, gpus_per_node=slurm.gpus_per_node, processes_per_node=ranks,
        time=slurm.time, partition=slurm.partition, account=slurm.account, qos=slurm.qos,
        cpus_per_task=slurm.cpus_per_task, mem=slurm.mem, requeue=slurm.requeue, signal_s=slurm.signal_s,
        setup=tuple(slurm.setup), extra=tuple(slurm.extra), max_parallel=slurm.max_parallel,
    )  # fmt: skip


def _trials(file: str | None, overrides: Sequence[str], config_dir: Path | None) -> list[Trial]:
    """Reads the trials of a sweep and validates the settings of each."""
    if file is None:
        return []
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"launch.slurm.trials={file} is no file. Give a text file with one trial's overrides a line.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"launch.slurm.trials={file} cannot be read as UTF-8 text ({error}). Give a text file with one trial's "
            f"overrides a line."
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    trials, names = [], set()
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        try:
            mine = tuple(shlex.split(line))
            name = str(compose_config([*overrides, *mine, "launch=none"], config_dir=config_dir).run_name)
        except ValueError as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
        if without_launch(mine) != mine:
            raise ConfigError(f"{file}, line {number} sets launch, which is the same for all trials. Take it out.")
        if name in names:
            raise ConfigError(f"{file}, line {number}: run_name={name} is taken by a trial above. Name each its own.")
        names.add(name)
        trials.append(Trial(mine))
    if not trials:
        raise LaunchError(f"{file} holds no trial. Write the overrides of one trial a line.")
    return trials
