"""Jobs for SLURM: pure functions from settings to the text of a batch script and the command that submits it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.launch.plan import FOLDER, LaunchError, LaunchPlan, Run

TEMPLATES = FOLDER / "slurm"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a sweep: what it has beside the overrides of all."""

    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What a job asks of SLURM. None leaves the cluster's default."""

    profile: str
    nodes: int
    gpus_per_node: int
    processes_per_node: int
    time: str | None
    partition: str | None
    account: str | None
    qos: str | None
    cpus_per_task: int | None
    mem: str | None
    requeue: bool
    signal_s: int
    setup: tuple[str, ...]
    extra: tuple[str, ...]
    max_parallel: int | None


def plan_slurm(
    job: SlurmJob, run: Run, environment: Mapping[str, str], *, trials: Sequence[Trial], working_folder: Path
) -> LaunchPlan:
    """Returns the batch script of a run, or of a sweep if there are trials, and the command that submits it.

    On each node the job starts ``python -m physedit.train ... launch=PROFILE``, which validates there, starts the
    node's ranks and passes signals on.

    Raises:
        LaunchError: a value that cannot stand in an ``#SBATCH`` line, a time that is none or too short for the signal
            before its end, or a sweep over several nodes.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # a tenth of a second of every other start

    _check_time(job)
    if trials and job.nodes > 1:
        raise LaunchError(
            f"launch.slurm.trials starts each trial on one node, but launch.slurm.nodes={job.nodes}. Set it to 1, or "
            "submit trials one by one."
        )
    name = "sweep_array" if trials else "one_node" if job.nodes == 1 else "many_nodes"
    folder = run.folder / "launch"
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,  # shell, not HTML
    )  # fmt: skip
    text = templates.get_template(f"{name}.sbatch.jinja").render(
        job=job,
        directives=_directives(job, run, folder, trials, working_folder),
        exports=[f"{key}={shlex.quote(value)}" for key, value in environment.items()],
        command=shlex.join([run.python, "-m", "physedit.train", *run.options, *run.overrides]),
        launch=f"launch={shlex.quote(job.profile)} launch.num_processes={job.nodes * job.processes_per_node}",
        trials=[shlex.join(trial.overrides) for trial in trials],
        typed=run.command.replace("\n", " "),
    )
    script = folder / "job.sbatch"
    return LaunchPlan(("sbatch", str(script)), {}, {folder / "config.yaml": run.config, script: text})


def _check_time(job: SlurmJob) -> None:
    if job.time is None:
        return
    seconds = seconds_of(job.time)
    if seconds is None:
        raise LaunchError(
            f"launch.slurm.time={job.time} is no time limit of SLURM. Write minutes, hours:minutes:seconds or "
            f"days-hours:minutes:seconds, such as 24:00:00."
        )
    if 0 < seconds <= job.signal_s:
        raise LaunchError(
            f"launch.slurm.time={job.time} is {seconds} s, but the run is told to save and stop "
            f"launch.slurm.signal_s={job.signal_s} s before its end, so it would never train. Give it more time, or a "
            f"smaller signal_s."
        )


def seconds_of(time: str) -> int | None:
    """Returns a time limit in seconds, 0 for none, or None if ``time`` is no limit.

    Source: sbatch(1), ``--time``.
    """
    if time.lower() in ("unlimited", "infinite"):
        return 0
    found = _TIME.fullmatch(time)
    if found is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    first, second, third = (part or 0 for part in parts)
    if days is not None:  # hours first
        return ((days * 24 + first) * 60 + second) * 60 + third
    if parts[2] is None:  # minutes first
        return first * 60 + second
    return (first * 60 + second) * 60 + third


_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


def _directives(job: SlurmJob, run: Run, folder: Path, trials: Sequence[Trial], working_folder: Path) -> list[str]:
    # A percent sign that is the folder's own is doubled: sbatch reads others as what to fill in.
    log = f"{working_folder / folder}".replace("%", "%%") + ("/job_%A_%a.log" if trials else "/job_%j.log")
    wanted = {
        "job-name": re.sub(r"[^\w.-]", "_", run.folder.name),
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "time": job.time,
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(job.gpus_per_node) if job.gpus_per_node else None,
        "cpus-per-task": None if job.cpus_per_task is None else str(job.cpus_per_task),
        "mem": job.mem,
        "array": _array(len(trials), job.max_parallel) if trials else None,
        "chdir": str(working_folder),
        "output": log,
        # A requeued job goes on in the same log.
        "open-mode": "append",
        # B: to this script alone, which passes it on.
        "signal": f"B:USR2@{job.signal_s}" if job.signal_s else None,
    }
    lines = [f"--{key}={_value(key, value)}" for key, value in wanted.items() if value is not None]
    lines.append("--requeue" if job.requeue else "--no-requeue")
    for line in job.extra:
        if "\n" in line or not line.startswith("-"):
            raise LaunchError(f"launch.slurm.extra: {line!r} is no option of sbatch, such as --constraint=a100.")
    return [*lines, *job.extra]


def _value(key: str, value: str) -> str:
    """Returns the value as an ``#SBATCH`` line takes it, which ends at a blank unless it is quoted."""
    if not value or not value.isprintable() or '"' in value:
        raise LaunchError(f"{value!r} cannot stand in a line of sbatch (--{key}). Choose another.")
    return f'"{value}"' if re.search(r"[\s#']", value) else value


def _array(num_trials: int, max_parallel: int | None) -> str:
    return f"0-{num_trials - 1}" + (f"%{max_parallel}" if max_parallel is not None else "")
