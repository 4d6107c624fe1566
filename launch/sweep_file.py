"""Sweeps in wandb's own yaml: what is searched, how, and the command of a trial. Nothing here starts a process."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from physedit.launch.hyperband import Hyperband
from physedit.launch.overrides import key_of, swept
from physedit.launch.plan import LaunchError

SWEEPS = Path(__file__).resolve().parent / "sweeps"
ARGUMENTS = "${args_no_hyphens}"
METHODS = ("grid", "random", "bayes")
KNOWN_KEYS = frozenset(
    {"name", "description", "project", "entity", "program", "command", "method", "metric", "parameters",
     "early_terminate", "run_cap"}
)  # fmt: skip
_MOST_NAME_SIGNS = 200
_LARGEST = 1e300
"""Of a bound, so that ranges and their draws are numbers too."""
_MOST_EXPONENT = math.log(sys.float_info.max)
Parameters: TypeAlias = Mapping[str, object]
"""The values of a trial by the names of the settings."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some values, by their probabilities."""

    values: tuple[object, ...]
    probabilities: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``low`` to ``high``, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Real:
    """A number from ``low`` to ``high``; evenly spread, or its logarithm; a multiple of ``step`` if there is one."""

    low: float
    high: float
    is_log: bool = False
    step: float | None = None


Space: TypeAlias = Choice | Whole | Real


@dataclass(frozen=True, slots=True)
class Metric:
    """What trials are compared by."""

    name: str
    goal: Literal["minimize", "maximize"]


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep as its file describes it."""

    path: Path
    name: str
    method: str
    metric: Metric | None
    parameters: Mapping[str, Space]
    command: tuple[str, ...]
    program: str | None
    early_stop: Hyperband | None
    run_cap: int | None

    def argv(self, parameters: Parameters, python: str) -> list[str]:
        """Returns the command of a trial as wandb's agent would build it, but with values that arrive exactly."""
        filled = {
            "${env}": ["/usr/bin/env"],
            "${interpreter}": [python],
            "${program}": [] if self.program is None else [self.program],
            ARGUMENTS: [swept(key, value) for key, value in parameters.items()],
        }
        return [part for chunk in self.command for part in filled.get(chunk, [chunk])]


def shipped_sweeps() -> list[str]:
    """Returns the sweep files of this project, by their paths from its root."""
    return [str(each.relative_to(SWEEPS.parent.parent)) for each in sorted(SWEEPS.glob("*.yaml"))]


def read_sweep_file(path: Path) -> SweepFile:
    """Returns the sweep of a file.

    Raises:
        LaunchError: no such file, or a sweep that has no meaning here; the message names file and key.
    """
    if not path.is_file():
        raise LaunchError(f"There is no sweep file {path}. Shipped ones: {', '.join(shipped_sweeps())}.")
    try:
        # Not plain yaml, which reads 1e-4 as text; OmegaConf reads numbers as the config does.
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        raise LaunchError(f"{path} cannot be read as yaml: {' '.join(str(error).split())}.") from error
    if not content:
        raise LaunchError(
            f"{path} is empty, but a sweep has method, parameters and command. Write them, as "
            f"{shipped_sweeps()[1]} does."
        )
    try:
        if not isinstance(content, dict):
            raise LaunchError("it must be a mapping with method, parameters and command")
        return _sweep(path, {str(key): value for key, value in content.items()})
    except LaunchError as error:
        raise LaunchError(f"{path}: {error}.") from error


def _sweep(path: Path, content: Mapping[str, object]) -> SweepFile:
    unknown = sorted(content.keys() - KNOWN_KEYS)
    if unknown:
        raise LaunchError(f"{', '.join(unknown)} has no effect here. Known: {', '.join(sorted(KNOWN_KEYS))}")
    method = content.get("method")
    if method not in METHODS:
        raise LaunchError(f"method: {method} is not one of {', '.join(METHODS)}")
    parameters = _mapping(content, "parameters")
    spaces = {key: _space(key, value) for key, value in parameters.items()}
    if not spaces:
        raise LaunchError("parameters names no setting to sweep")
    continuous = [key for key, space in spaces.items() if isinstance(space, Real)]
    if method == "grid" and continuous:
        raise LaunchError(f"parameters.{continuous[0]} has no list of values, which method: grid needs")
    metric = _metric(content)
    stops = Hyperband.from_mapping(_mapping(content, "early_terminate")) if "early_terminate" in content else None
    if metric is None and (method == "bayes" or stops is not None):
        raise LaunchError(f"{'early_terminate' if stops else 'method: bayes'} needs metric: {{name: ..., goal: ...}}")
    cap = content.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or isinstance(cap, bool) or cap < 1):
        raise LaunchError(f"run_cap: {cap} must be a whole number of at least 1")
    program = content.get("program")
    return SweepFile(
        path=path,
        name=_name(path.stem if content.get("name") is None else content["name"]),
        method=str(method),
        metric=metric,
        parameters=spaces,
        command=_command(content.get("command"), has_program=program is not None),
        program=None if program is None else str(program),
        early_stop=stops,
        run_cap=cap,
    )


def _name(value: object) -> str:
    """Returns the sweep's name, by the rule of ``run_name``: it names a folder and the trials' group."""
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if (
        not isinstance(name, str)
        or "/" in name
        or name in (".", "..")
        or name != name.strip()
        or not name.isprintable()
        or not 1 <= len(name) <= _MOST_NAME_SIGNS
    ):
        raise LaunchError(
            f"name: {value!r} must be a plain folder name of 1 to {_MOST_NAME_SIGNS} printable characters without '/'"
        )
    return name


def _command(value: object, *, has_program: bool) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise LaunchError("command must be a list, such as [physedit, train, experiment=demo, '${args_no_hyphens}']")
    command = tuple(str(part) for part in value)
    if command.count(ARGUMENTS) != 1:
        raise LaunchError(
            f"command must hold {ARGUMENTS} once: without it no trial gets its values, and other forms, such as "
            "${args}, are not Hydra's"
        )
    macros = {"${env}", "${interpreter}", ARGUMENTS, *(["${program}"] if has_program else [])}
    for part in command:
        if part.startswith("${") and part.endswith("}") and part not in macros:
            raise LaunchError(f"command: {part} is not known here. Known: {', '.join(sorted(macros))}")
        if "${envvar:" in part:
            raise LaunchError(f"command: {part}: write ${{oc.env:NAME}}, which Hydra fills in each process of a trial")
    return command


def _metric(content: Mapping[str, object]) -> Metric | None:
    if "metric" not in content:
        return None
    metric = _mapping(content, "metric")
    name, goal = metric.get("name"), metric.get("goal", "minimize")
    if not isinstance(name, str) or not name:
        raise LaunchError("metric has no name")
    if goal not in ("minimize", "maximize"):
        raise LaunchError(f"metric.goal: {goal} is not minimize or maximize")
    return Metric(name, "maximize" if goal == "maximize" else "minimize")


def _mapping(content: Mapping[str, object], key: str) -> dict[str, object]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise LaunchError(f"{key} must be a mapping, found {value!r}")
    return {str(name): item for name, item in value.items()}


def _space(key: str, description: object) -> Space:
    where = f"parameters.{key}"
    if not isinstance(description, dict):
        raise LaunchError(f"{where} must say value, values, or min and max, found {description!r}")
    if not key_of(key) or "=" in key:
        raise LaunchError(f"{where} is not the name of a setting")
    if "parameters" in description:
        raise LaunchError(f"{where} is nested. Write each setting by its full name, as optimizer.lr")
    given = {str(name): value for name, value in description.items()}
    distribution = given.pop("distribution", None)
    if "value" in given and distribution in (None, "constant"):
        space: Space = Choice((given.pop("value"),))
    elif "values" in given and distribution in (None, "categorical"):
        space = _choice(where, given.pop("values"), given.pop("probabilities", None))
    elif "min" in given and "max" in given:
        space = _range(where, distribution, given)
    else:
        raise LaunchError(f"{where} must say value, values, or min and max (distribution: {distribution})")
    if given:
        raise LaunchError(f"{where}: {', '.join(sorted(given))} has no effect")
    return space


def _choice(where: str, values: object, probabilities: object) -> Choice:
    if not isinstance(values, list) or not values:
        raise LaunchError(f"{where}.values must be a list with something in it")
    if probabilities is None:
        return Choice(tuple(values))
    numbers = [_number(f"{where}.probabilities", each) for each in _items(probabilities)]
    if len(numbers) != len(values) or min(numbers) < 0 or not math.isclose(sum(numbers), 1.0, abs_tol=1e-6):
        raise LaunchError(f"{where}.probabilities must be one share for each value, together 1")
    return Choice(tuple(values), tuple(numbers))


def _range(where: str, distribution: object, given: dict[str, object]) -> Space:
    bounds = given.pop("min"), given.pop("max")
    low, high = (_number(where, bound) for bound in bounds)
    if low > high:
        raise LaunchError(f"{where}: min {low} is above max {high}")
    if distribution is None:
        distribution = "int_uniform" if all(isinstance(bound, int) for bound in bounds) else "uniform"
    if distribution == "int_uniform":
        if low != int(low) or high != int(high):
            raise LaunchError(f"{where}: int_uniform needs whole numbers, found {low} and {high}")
        return Whole(int(low), int(high))
    if distribution in ("uniform", "q_uniform"):
        step = _number(f"{where}.q", given.pop("q", 1.0)) if distribution == "q_uniform" else None
        if step is not None and step <= 0:
            raise LaunchError(f"{where}.q must be above 0")
        return Real(low, high, step=step)
    if distribution == "log_uniform":  # wandb's bounds are exponents of e
        if high > _MOST_EXPONENT:
            raise LaunchError(
                f"{where}: log_uniform takes exponents of e, and e to the {high:g} is beyond every number. For bounds "
                "that are the values themselves write distribution: log_uniform_values"
            )
        low, high = math.exp(low), math.exp(high)
    elif distribution != "log_uniform_values":
        known = "constant, categorical, int_uniform, uniform, q_uniform, log_uniform, log_uniform_values"
        raise LaunchError(f"{where}.distribution: {distribution} is not known here. Known: {known}")
    if low <= 0:
        raise LaunchError(f"{where}: a logarithm needs bounds above 0, found {low}")
    return Real(low, high, is_log=True)


def _number(where: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST:
        raise LaunchError(f"{where}: {value!r} is not a number, or beyond {_LARGEST:g}")
    return float(value)


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []
