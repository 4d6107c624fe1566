"""What is wrong with a composed config, said before anything is opened."""

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from physedit.train.build import resolve_target
from physedit.train.config import ConfigError, TrainConfig, one_line, options, suggestion


def validate(config: DictConfig) -> None:
    """Checks values, keys and cross-field rules of a composed run; opens no file.

    Raises:
        ConfigError: a missing value, a stray key, a wrong type or two settings that contradict each other.
    """
    missing = sorted(str(key) for key in OmegaConf.missing_keys(config))
    if missing:
        keys = ", ".join(missing)
        raise ConfigError(f"No value for {keys}. Give it on the command line, for example {missing[0]}=VALUE.")
    try:
        OmegaConf.resolve(config)
        # As plain data: nodes that carry a schema's type let a '+key' pass.
        OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.to_container(config))
    except OmegaConfBaseException as error:
        raise ConfigError(_stray_key(error) or one_line(str(error))) from error
    for key, node in _components(config):
        _check_component(key, node)
    _check_rules(config)


def batches_per_step(config: DictConfig, num_processes: int) -> int:
    """Returns the accumulation steps that make up the global batch.

    Raises:
        ConfigError: the global batch is not a multiple of micro_batch times the processes.
    """
    at_once = int(config.micro_batch) * num_processes
    if int(config.global_batch) % at_once:
        raise ConfigError(
            f"global_batch={config.global_batch} does not divide by micro_batch={config.micro_batch} times "
            f"{num_processes} process(es) = {at_once}. Set global_batch to a multiple of {at_once}, "
            f"or change micro_batch."
        )
    return int(config.global_batch) // at_once


def _check_rules(config: DictConfig) -> None:
    for key in ("num_steps", "global_batch", "micro_batch", "log_every"):
        if config[key] < 1:
            raise ConfigError(f"{key}={config[key]} must be at least 1.")
    batches_per_step(config, 1)
    if config.resume not in ("auto", "never"):
        raise ConfigError(f"resume={config.resume} is not known. Use resume=auto or resume=never.")
    if config.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={config.device} is not known. Use auto, cpu or cuda.")
    if (config.adapter.preset is None) == (config.adapter.targets is None):
        raise ConfigError(
            "adapter.preset and adapter.targets name the same thing: set exactly one of them and null the other."
        )
    if config.adapter.rank < 1:
        raise ConfigError(f"adapter.rank={config.adapter.rank} must be at least 1.")
    weights = [float(value) for value in config.levels.values()]
    if min(weights) < 0 or sum(weights) <= 0:
        raise ConfigError(f"levels={dict(config.levels)} must be non-negative with a positive sum.")
    if config.ema_decay is not None and not 0 < config.ema_decay < 1:
        raise ConfigError(f"ema_decay={config.ema_decay} must lie between 0 and 1, or be null for none.")
    if "/" in config.run_name or config.run_name in ("", ".", ".."):
        raise ConfigError(f"run_name={config.run_name!r} must be a plain folder name without '/'.")
    for name in map(str, config.eval):
        for step in OmegaConf.select(config, f"eval.{name}.cadence.steps") or ():
            if step > config.num_steps:
                raise ConfigError(
                    f"eval.{name}.cadence.steps asks for step {step}, but the run ends at "
                    f"num_steps={config.num_steps}. Remove the step or raise num_steps."
                )


def _components(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Yields every node with a ``_target_``, with its dotted key, outermost first."""

    def walk(key: str, node: object) -> Iterator[tuple[str, DictConfig]]:
        if isinstance(node, DictConfig):
            if "_target_" in node:
                yield key, node
            for name in map(str, node):
                yield from walk(f"{key}.{name}" if key else name, node[name])
        elif isinstance(node, ListConfig):
            for position, item in enumerate(node):
                yield from walk(f"{key}[{position}]", item)

    yield from walk("", config)
    for name in ("backbone", "data", "objective", "optimizer", "schedule", "tracker"):
        if not isinstance(config[name], DictConfig) or "_target_" not in config[name]:
            raise ConfigError(
                f"{name} has no _target_, so nothing says which class to build. "
                f"Choose a shipped option with {name}=NAME ({', '.join(options(name))})."
            )


def _check_component(key: str, node: DictConfig) -> None:
    try:
        target = resolve_target(str(node["_target_"]))
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{key}._target_: {error}") from error
    parameters = inspect.signature(target).parameters
    hints = _hints(target)
    for name in map(str, node):
        if name == "_target_":
            continue
        if name not in parameters:
            raise ConfigError(
                f"{key}.{name} is not an argument of {node['_target_']}."
                f"{suggestion(name, parameters)} It takes: {', '.join(parameters)}."
            )
        _check_value(f"{key}.{name}", node[name], hints.get(name))


def _hints(target: Any) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):
        return {}


def _check_value(key: str, value: object, hint: Any) -> None:
    """Refuses a number for a word and a word for a number where the annotation is plain enough to tell."""
    members = _members(hint)
    if not members or isinstance(value, (DictConfig, ListConfig)):
        return
    if isinstance(value, int) and not isinstance(value, bool) and float in members:
        return
    if type(value) not in members:
        names = " or ".join(sorted("null" if t is type(None) else t.__name__ for t in members))
        raise ConfigError(f"{key}={value!r} is a {type(value).__name__}, but {names} is expected.")


def _members(hint: Any) -> set[type]:
    """Returns the types of an annotation, or nothing if one of them can take many forms (Literal, Any, enums)."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    members = typing.get_args(hint) if union else (hint,)
    simple = {int, float, str, bool, type(None), Tensor}
    return set(members) if all(member in simple for member in members) else set()


def _stray_key(error: OmegaConfBaseException) -> str | None:
    key = getattr(error, "full_key", None)
    if "not in" not in str(error) or not key:
        return None
    owner, _, last = str(key).rpartition(".")
    node: Any = OmegaConf.structured(TrainConfig)
    known = [str(k) for k in (OmegaConf.select(node, owner) if owner else node) or ()]
    return f"{key} is not a setting.{suggestion(last, known)} Known{' below ' + owner if owner else ''}: " + (
        f"{', '.join(known)}."
    )
