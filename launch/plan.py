"""What a launch is: pure functions from settings to a command, its environment and the files it reads.

Nothing here starts a process or writes a file; ``launch/local.py`` does, and ``--dry-run`` only shows.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parent
PROFILES = FOLDER / "accelerate"
ENGINES = ("NO", "MULTI_GPU", "MULTI_CPU", "DEEPSPEED")
"""What a profile may name as ``distributed_type``: what the trainer computes with."""
LARGEST_PORT = 65535
TRAINER = "physedit.train"
LAUNCHER = "physedit.train.launcher"
"""``accelerate launch`` that passes signals on and ends with the exit code of the first rank that failed."""

COMMAND_VARIABLE = "PHYSEDIT_COMMAND"
"""Holds what the user typed; a process that finds it was started by a parent that has validated the run."""


class LaunchError(ValueError):
    """A launch that cannot be planned; the message is one paragraph for the user."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A command to start, what its environment has beside the caller's, and the files to write first."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[Path, str]

    def described(self) -> str:
        """Returns the plan as text: the files, those that a batch system reads whole; environment; command."""
        parts = [
            f"# writes {path}\n" + (f"{text.rstrip()}\n" if path.suffix == ".sbatch" else "")
            for path, text in self.files.items()
        ]
        return "".join(parts) + _exports(self.environment) + f"{shlex.join(self.argv)}\n"


@dataclass(frozen=True, slots=True)
class Profile:
    """A file that ``accelerate launch --config_file`` reads, and the DeepSpeed file it names."""

    file: Path
    deepspeed_file: Path | None

    @property
    def zero_stage(self) -> int:
        """The stage of ZeRO, or 0 without DeepSpeed.

        Raises:
            LaunchError: the DeepSpeed file cannot be read, or names none.
        """
        if self.deepspeed_file is None:
            return 0
        try:
            settings = json.loads(self.deepspeed_file.read_text(encoding="utf-8"))
            return int(settings["zero_optimization"]["stage"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LaunchError(
                f"{self.deepspeed_file} is no DeepSpeed file with a number at zero_optimization.stage ({error!r}). Use "
                f"one like those of launch/deepspeed."
            ) from error


@dataclass(frozen=True, slots=True)
class Machines:
    """The processes of a launch and where they meet."""

    num_processes: int
    """Over all machines."""
    num_machines: int = 1
    machine_rank: int = 0
    main_process_ip: str | None = None
    main_process_port: int = 0
    """0 takes a free one, which only works on one machine."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is to be launched."""

    folder: Path
    overrides: tuple[str, ...]
    """As the user gave them, without what chooses the launch."""
    options: tuple[str, ...]
    """Of the command line, such as ``--config-dir``."""
    command: str
    """What the user typed."""
    config: str
    """The composed config as yaml."""
    python: str
    """The interpreter."""


def shipped_profiles() -> list[str]:
    """Returns the names of the profiles in ``launch/accelerate``."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def find_profile(name: str) -> Profile:
    """Returns a shipped profile by its name, or a file of the user's by its path.

    Raises:
        LaunchError: there is none, it is no accelerate yaml, or it names an engine that the trainer does not know or a
            DeepSpeed file that does not exist.
    """
    is_shipped = "/" not in name and not name.endswith(".yaml")
    file = PROFILES / f"{name}.yaml" if is_shipped else Path(name).absolute()
    if not file.is_file():
        raise LaunchError(
            f"launch profile {name}: there is no file {file}. Use one of {', '.join(shipped_profiles())}, or the path "
            "of an accelerate yaml of your own."
        )
    named = _deepspeed_file_of(file)
    if named is None:
        return Profile(file, None)
    deepspeed = (FOLDER.parent if is_shipped else Path.cwd()) / named
    if not deepspeed.is_file():
        raise LaunchError(f"{file} names deepspeed_config_file {named}, but there is no file {deepspeed}.")
    return Profile(file, deepspeed)


def _deepspeed_file_of(profile: Path) -> str | None:
    """Returns the DeepSpeed file that a profile names, or None."""
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LaunchError(
            f"launch profile {profile} cannot be read as yaml ({' '.join(str(error).split())})."
        ) from error
    if not isinstance(content, dict):
        raise LaunchError(
            f"launch profile {profile} holds {'nothing' if content is None else type(content).__name__}, but an "
            f"accelerate yaml is wanted, such as `accelerate config` writes or {PROFILES / 'ddp.yaml'}."
        )
    engine = content.get("distributed_type")
    # YAML reads a bare NO as false.
    if engine is not False and engine not in ENGINES:
        found = "names no distributed_type" if engine is None else f"names distributed_type {engine}"
        raise LaunchError(
            f"launch profile {profile} {found}, but the trainer knows {', '.join(ENGINES)}. Use one of these, or one "
            f"of the profiles {', '.join(shipped_profiles())}."
        )
    settings = content.get("deepspeed_config") or {}
    if not isinstance(settings, dict):
        raise LaunchError(f"launch profile {profile}: deepspeed_config is {settings!r}, but settings are wanted.")
    named = settings.get("deepspeed_config_file")
    return None if named is None else str(named)


def without_launch(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides that say what is trained, without those that say how it is started."""
    return tuple(each for each in overrides if not _chooses_launch(each))


def plan_local(
    profile: Profile, machines: Machines, run: Run, environment: Mapping[str, str], *, has_rank_logs: bool
) -> LaunchPlan:
    """Returns how this machine's ranks of a run are started with accelerate.

    The ranks get the user's overrides with ``launch=none``. Machine 0 alone writes files.

    Raises:
        LaunchError: processes that the machines cannot share, or machines that cannot meet.
    """
    _check_machines(machines)
    arguments = ["--config_file", str(profile.file)]
    if profile.deepspeed_file is not None:
        arguments += ["--deepspeed_config_file", str(profile.deepspeed_file)]
    arguments += ["--num_processes", str(machines.num_processes), "--num_machines", str(machines.num_machines)]
    arguments += ["--main_process_port", str(machines.main_process_port)]
    if machines.num_machines > 1:
        assert machines.main_process_ip is not None
        is_host = machines.machine_rank == 0
        arguments += ["--machine_rank", str(machines.machine_rank), "--main_process_ip", machines.main_process_ip]
        arguments += ["--rdzv_backend", "c10d", "--rdzv_conf", f"is_host={str(is_host).lower()}"]
    if has_rank_logs:
        arguments += ["--tee", "3", "--log_dir", str(run.folder / "launch" / f"machine_{machines.machine_rank}")]
    argv = (
        run.python, "-m", LAUNCHER, *arguments, "-m", TRAINER, *run.options, *run.overrides, "launch=none"
    )  # fmt: skip
    full = {
        "PYTHONSAFEPATH": "1",
        # On SIGTERM torch's launcher would kill the ranks after 30 s; ours passes it on and waits while they save.
        "PET_SIGNALS_TO_HANDLE": "SIGQUIT",
        **environment,
        COMMAND_VARIABLE: run.command,
    }
    return LaunchPlan(argv, full, _files(run, argv, full) if machines.machine_rank == 0 else {})


def _chooses_launch(override: str) -> bool:
    key = override.lstrip("+~").split("=", 1)[0].split("@", 1)[0].strip()
    return key == "launch" or key.startswith("launch.")


def check_counts(num_processes: int, num_machines: int) -> None:
    """Verifies that machines can share processes.

    Raises:
        LaunchError: there is none of either, or not as many on each.
    """
    for key, value in (("num_machines", num_machines), ("num_processes", num_processes)):
        if value < 1:
            raise LaunchError(f"launch.{key}={value} must be at least 1.")
    if num_processes % num_machines:
        raise LaunchError(
            f"launch.num_processes={num_processes} counts the processes of all machines, so it must be a multiple of "
            f"launch.num_machines={num_machines}."
        )


def _check_machines(machines: Machines) -> None:
    check_counts(machines.num_processes, machines.num_machines)
    if not 0 <= machines.main_process_port <= LARGEST_PORT:
        raise LaunchError(
            f"launch.main_process_port={machines.main_process_port} is no port: it must lie between 1 and "
            f"{LARGEST_PORT}, or be 0 for a free one on one machine."
        )
    if machines.num_machines == 1:
        return
    if machines.main_process_ip is None or machines.main_process_port < 1:
        raise LaunchError(
            f"launch.num_machines={machines.num_machines} needs a place where the machines meet: give the same "
            "launch.main_process_ip=HOST and launch.main_process_port=PORT on each (or MASTER_ADDR with "
            "launch=multinode_zero2)."
        )
    if not 0 <= machines.machine_rank < machines.num_machines:
        raise LaunchError(
            f"launch.machine_rank={machines.machine_rank} must lie between 0 and {machines.num_machines - 1}: it "
            f"counts the launch.num_machines={machines.num_machines} machines."
        )


def _files(run: Run, argv: Sequence[str], environment: Mapping[str, str]) -> dict[Path, str]:
    folder = run.folder / "launch"
    typed = run.command.replace("\n", " ")
    return {
        folder / "config.yaml": run.config,
        folder / "command.sh": f"# {typed}\n{_exports(environment)}exec {shlex.join(argv)}\n",
    }


def _exports(environment: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
