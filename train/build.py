"""Builds components from config nodes: the only place where a ``_target_`` becomes an object."""

import importlib
import os
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

ALLOWED_PREFIXES = ("physedit.", "torch.optim.")
"""Modules whose classes a config may name. A config can come from a downloaded run: it must not name others."""

EXTRA_PREFIXES_VARIABLE = "PHYSEDIT_TARGET_PREFIXES"
"""Environment variable with further allowed prefixes, comma separated, for components in your own package."""


def resolve_target(target: str) -> Callable[..., Any]:
    """Returns the class or function that ``target`` names.

    Raises:
        ValueError: the module is not on the allow-list, or has no such name.
        ImportError: the module cannot be imported.
    """
    extra = tuple(p for p in os.environ.get(EXTRA_PREFIXES_VARIABLE, "").split(",") if p)
    if not target.startswith(ALLOWED_PREFIXES + extra):
        raise ValueError(
            f"{target} is not below an allowed module ({', '.join(ALLOWED_PREFIXES + extra)}). "
            f"For a component of your own, set {EXTRA_PREFIXES_VARIABLE}=your_package."
        )
    module_name, _, name = target.rpartition(".")
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise ValueError(f"module {module_name} has no {name}.")
    return getattr(module, name)  # type: ignore[no-any-return]


def build(node: DictConfig, **runtime: object) -> Any:
    """Builds the component of ``node``; nested nodes with a ``_target_`` are built first.

    Args:
        node: a config node with ``_target_`` and keyword arguments.
        **runtime: arguments that exist only at run time, such as an optimizer's ``params``.
    """
    plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return _build(plain, runtime)


def _build(node: dict[Any, Any], runtime: dict[str, object]) -> Any:
    arguments = {
        str(key): _build(value, {}) if isinstance(value, dict) and "_target_" in value else value
        for key, value in node.items()
        if key != "_target_"
    }
    return resolve_target(str(node["_target_"]))(**arguments, **runtime)
