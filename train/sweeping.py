"""Plans a sweep on this machine: every trial composed before the first starts."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from omegaconf import DictConfig

from physedit.launch.overrides import key_of, override
from physedit.launch.plan import LaunchError, without_launch
from physedit.launch.sweep_file import Parameters, SweepFile, read_sweep_file, shipped_sweeps
from physedit.launch.sweep_runner import SweepPlan, trial_name
from physedit.launch.sweep_search import import_optuna, next_parameters, num_trials
from physedit.launch.sweep_trials import TRIALS_FILE
from physedit.train.compose import compose_config
from physedit.train.config import ConfigError
from physedit.train.launching import check_launch
from physedit.train.output import check_can_be_made
from physedit.train.swept import check_swept

SET_FOR_EACH_TRIAL = frozenset({"run_name", "output_root"})
ONLY_WITH_A_SERVER = frozenset({"tracker.mode"})


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What a user asked of a sweep on this machine."""

    file: Path
    overrides: tuple[str, ...] = ()
    """Further settings of every trial."""
    folder: Path | None = None
    """None means runs/sweeps/NAME."""
    count: int | None = None
    """How many trials; None means the file's ``run_cap``, or the whole grid."""
    seed: int = 0
    """Of random and bayes."""
    stops_at_first_failure: bool = False


def check_is_file(path: Path) -> None:
    """Verifies that a sweep is not asked for by a folder.

    Raises:
        LaunchError: it is, with what to give instead.
    """
    if not path.is_dir():
        return
    inner = sorted(each for each in path.iterdir() if each.suffix in (".yaml", ".yml"))
    if (path / TRIALS_FILE).is_file():
        remedy = f"To go on with it, give the file it was started with; to see what came of it: physedit compare {path}"
    elif inner:
        remedy = f"Give one that is in it, such as {inner[0]}"
    else:
        remedy = f"Shipped ones: {', '.join(shipped_sweeps())}"
    raise LaunchError(f"{path} is a folder, but a sweep is a yaml file. {remedy}.")


def plan_sweep(request: SweepRequest) -> SweepPlan:
    """Returns how a sweep is run here; all trials that can be known are composed and validated.

    Raises:
        LaunchError: a file that is no sweep, a search that cannot be made here, or a program that is not there.
        ConfigError: a trial that makes no run, named, or a folder that cannot be written.
    """
    check_is_file(request.file)
    sweep = read_sweep_file(request.file)
    _check_overrides(sweep, request.overrides)
    if sweep.method == "bayes":
        import_optuna()
    folder = Path("runs") / "sweeps" / sweep.name if request.folder is None else request.folder

    check_can_be_made(folder)

    def command(name: str, parameters: Parameters) -> list[str]:
        return _command(
            sweep, parameters, [*request.overrides, override("output_root", str(folder)), f"run_name={name}"]
        )

    plan = SweepPlan(
        sweep=sweep,
        folder=folder,
        num_trials=num_trials(sweep, request.count),
        seed=request.seed,
        definition=_definition(sweep, request),
        command=command,
        environment=_environment(sweep.name),
        stops_at_first_failure=request.stops_at_first_failure,
    )
    trials = known_trials(plan)
    for name, parameters in trials[:1]:
        _check_program(plan, plan.command(name, parameters))
    for name, parameters in trials:
        _check_trial(plan, name, parameters)
    return plan


def known_trials(plan: SweepPlan) -> list[tuple[str, Parameters]]:
    """Returns the trials whose values depend on no result: all, or the first of a bayes search."""
    count = 1 if plan.sweep.method == "bayes" else plan.num_trials
    return [(trial_name(number), next_parameters(plan.sweep, number, plan.seed, ())) for number in range(count)]


def _check_overrides(sweep: SweepFile, overrides: Sequence[str]) -> None:
    for given in overrides:
        key = key_of(given)
        if key in SET_FOR_EACH_TRIAL:
            raise LaunchError(
                f"{given}: each trial has its own run_name in the sweep's folder. Use --out FOLDER for it."
            )
        if key in {key_of(name) for name in sweep.parameters}:
            raise LaunchError(f"{given}: {key} is what {sweep.path} sweeps. Leave it out, or change the file.")


def _command(sweep: SweepFile, parameters: Parameters, more: Sequence[str]) -> list[str]:
    """Returns a trial's command without what belongs to a server, and with ``more`` last, where it counts."""
    dropped = SET_FOR_EACH_TRIAL | ONLY_WITH_A_SERVER
    argv = sweep.argv(parameters, sys.executable)
    return [*(part for part in argv if "=" not in part or key_of(part) not in dropped), *more]


def _check_trial(plan: SweepPlan, name: str, parameters: Parameters) -> None:
    try:
        overrides, config_dir = _arguments(plan.command(name, parameters))
        config = compose_config(overrides, config_dir=config_dir)
        check_swept(config, overrides, parameters)
        check_launch(config)
        _check_metric(plan.sweep, config)
    except ValueError as error:
        values = ", ".join(f"{key}={value}" for key, value in parameters.items())
        raise ConfigError(f"{plan.sweep.path}, {name} ({values}): {error}") from error
    if config.launch.kind == "slurm":
        raise ConfigError(
            f"{plan.sweep.path}: launch=slurm ends when a job is submitted, so a sweep here would not see its trials. "
            "Use launch.slurm.trials=FILE for an array, or another launch."
        )


def _check_program(plan: SweepPlan, argv: Sequence[str]) -> None:
    """Refuses a command whose program no trial would find."""
    program, *rest = argv
    if Path(program).name == "env" and rest and not rest[0].startswith("-") and "=" not in rest[0]:
        _check_program(plan, rest)
    if shutil.which(program, path=plan.environment["PATH"]) is None:
        raise LaunchError(
            f"{plan.sweep.path}: the command starts {program!r}, but there is no such program. Name one that is "
            "installed, such as physedit or ${interpreter}."
        )


def _arguments(argv: Sequence[str]) -> tuple[list[str], Path | None]:
    """Returns the overrides and ``--config-dir`` of a command that starts the trainer."""
    starts = [
        number + 1
        for number, part in enumerate(argv)
        if number and (part, Path(argv[number - 1]).name) in (("train", "physedit"), ("physedit.train", "-m"))
    ]
    if not starts:
        raise LaunchError("its command starts neither `physedit train` nor `-m physedit.train`, so it trains nothing.")
    rest, config_dir, overrides = iter(argv[starts[0] :]), None, []
    for part in rest:
        if part == "--config-dir":
            config_dir = Path(next(rest, ""))
        elif part.startswith("-"):
            raise LaunchError(f"its command has {part}, which is no setting. Write key=value.")
        else:
            overrides.append(part)
    return overrides, config_dir


def _check_metric(sweep: SweepFile, config: DictConfig) -> None:
    """Refuses a search by a metric that no trial measures."""
    if sweep.metric is None or (sweep.method != "bayes" and sweep.early_stop is None):
        return
    names = {"train", *(str(config.eval[name].get("name", name)) for name in config.eval)}
    if sweep.metric.name.split("/")[0] not in names:
        raise ConfigError(
            f"the search goes by {sweep.metric.name}, which this run does not measure: it has "
            f"{', '.join(sorted(names))}. Choose an evaluation with eval=NAME, or another metric."
        )


def _definition(sweep: SweepFile, request: SweepRequest) -> Mapping[str, object]:
    spaces = {key: {type(space).__name__: asdict(space)} for key, space in sweep.parameters.items()}
    definition = {
        "method": sweep.method,
        "metric": None if sweep.metric is None else asdict(sweep.metric),
        "parameters": spaces,
        "command": without_launch(sweep.command),
        "overrides": without_launch(request.overrides),
        "seed": None if sweep.method == "grid" else request.seed,
    }
    return dict(json.loads(json.dumps(definition)))


def _environment(name: str) -> dict[str, str]:
    """Returns what trials find beside this process' environment: this ``physedit``, and their group for a tracker."""
    tools = str(Path(sys.executable).parent)
    return {
        "PATH": os.pathsep.join([tools, os.environ.get("PATH", os.defpath)]),
        "WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP", name),
    }
