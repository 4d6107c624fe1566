"""What is wrong with a composed config, said before anything is opened."""

import inspect
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from physedit.train.build import resolve_target
from physedit.train.config import ConfigError, TrainConfig, one_line, options, suggestion
from physedit.train.rules import check_rules


def validate(config: DictConfig) -> None:
    """Checks values, keys and cross-field rules of a composed run; opens no file.

    Raises:
        ConfigError: a missing value, a stray key, a wrong type or two settings that contradict each other.
    """
    present = set(config.keys())  # "in" would call a missing value absent
    lost = [f.name for f in fields(TrainConfig) if f.name not in present]
    if lost:
        raise ConfigError(f"{', '.join(lost)} was removed from the config, but a run needs it. Leave out the '~'.")
    try:
        missing = sorted(str(key) for key in OmegaConf.missing_keys(config))
        if missing:
            keys = ", ".join(missing)
            raise ConfigError(f"No value for {keys}. Give it on the command line, for example {missing[0]}=VALUE.")
        OmegaConf.resolve(config)
        # As plain data: nodes that carry a schema's type let a '+key' pass.
        OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.to_container(config))
    except OmegaConfBaseException as error:
        raise ConfigError(_stray_key(error) or one_line(str(error))) from error
    _check_has_components(config)
    for key, node in _components(config):
        _check_component(key, node)
    check_rules(config)


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


def _check_has_components(config: DictConfig) -> None:
    """Refuses a component without a class, such as a misspelled hook that '+' made up."""
    for name in ("backbone", "data", "objective", "optimizer", "schedule", "tracker"):
        if not isinstance(config[name], DictConfig) or "_target_" not in config[name]:
            raise ConfigError(
                f"{name} has no _target_, so nothing says which class to build. "
                f"Choose a shipped option with {name}=NAME ({', '.join(options(name))})."
            )
    named = [str(name) for name in config.eval]
    for name in named:
        if not isinstance(config.eval[name], DictConfig) or "_target_" not in config.eval[name]:
            others = [other for other in named if other != name]
            raise ConfigError(f"eval.{name} has no _target_, so it is no hook.{suggestion(name, others)}")


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
    """Refuses a value that the annotation plainly rules out: wrong word, number for a word, scalar for a list."""
    choices = _choices(hint)
    if choices and not any(value == choice and type(value) is type(choice) for choice in choices):
        shown = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise ConfigError(f"{key}={value} is not one of {shown}.")
    if isinstance(value, ListConfig):
        _check_items(key, value, hint)
        return
    members = _members(hint)
    if not members or isinstance(value, DictConfig):
        return
    if isinstance(value, int) and not isinstance(value, bool) and float in members:
        return
    if type(value) not in members:
        names = " or ".join(sorted("null" if t is type(None) else t.__name__ for t in members))
        raise ConfigError(f"{key}={value!r} is a {type(value).__name__}, but {names} is expected.")


def _check_items(key: str, values: ListConfig, hint: Any) -> None:
    lengths = {_length(each) for each in _alternatives(hint) if each is not type(None)}
    if None not in lengths and len(values) not in lengths:
        expected = " or ".join(str(length) for length in sorted(filter(None, lengths)))
        raise ConfigError(f"{key}={list(values)} has {len(values)} items, but {expected} are expected.")
    for each in _alternatives(hint):
        arguments = [argument for argument in typing.get_args(each) if argument is not Ellipsis]
        if typing.get_origin(each) in (list, tuple, Sequence) and len(set(arguments)) == 1:
            for position, value in enumerate(values):
                _check_value(f"{key}[{position}]", value, arguments[0])


def _length(hint: Any) -> int | None:
    """Returns how many items a tuple of this annotation has, or None if any number may do."""
    arguments = typing.get_args(hint)
    return len(arguments) if typing.get_origin(hint) is tuple and arguments and Ellipsis not in arguments else None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _choices(hint: Any) -> tuple[object, ...]:
    """Returns the values of a Literal, with None if it may be absent; nothing for other annotations."""
    words = [each for each in _alternatives(hint) if each is not type(None)]
    if not words or any(typing.get_origin(each) is not typing.Literal for each in words):
        return ()
    chosen = tuple(choice for each in words for choice in typing.get_args(each))
    return (None, *chosen) if len(words) < len(_alternatives(hint)) else chosen


def _members(hint: Any) -> set[type]:
    """Returns the types of an annotation, or nothing if a value may take a form that cannot be told here.

    A list or tuple stands for itself: a scalar where a list is expected is refused.
    """
    members = {typing.get_origin(each) or each for each in _alternatives(hint)}
    simple = {int, float, str, bool, type(None), Tensor, list, tuple, Sequence}
    return members if members <= simple else set()


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
