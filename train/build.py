"""Builds components from config nodes: the only place where a ``_target_`` becomes an object."""

import importlib
import os
from typing import Any

from omegaconf import DictConfig, OmegaConf

ALLOWED_PACKAGES = ("physedit", "torch.optim")
"""Packages whose classes a config may name. A config can come from a downloaded run: it must not name others."""

EXTRA_PACKAGES_VARIABLE = "PHYSEDIT_TARGET_PACKAGES"
"""Environment variable with further packages, comma separated, for components of your own."""


def resolve_target(target: str) -> type[Any]:
    """Returns the class that ``target`` names.

    Raises:
        ValueError: it is no class, or not one that an allowed package defines; an imported name does not count.
        ImportError: the module cannot be imported.
    """
    packages = ALLOWED_PACKAGES + tuple(p for p in os.environ.get(EXTRA_PACKAGES_VARIABLE, "").split(",") if p)
    if not _is_below(target, packages):
        raise ValueError(
            f"{target} is not below an allowed package ({', '.join(packages)}). "
            f"For a component of your own, set {EXTRA_PACKAGES_VARIABLE}=your_package."
        )
    module_name, _, name = target.rpartition(".")
    found = getattr(importlib.import_module(module_name), name, None)
    if not isinstance(found, type) or not _is_below(f"{found.__module__}.", packages):
        raise ValueError(f"module {module_name} defines no class {name}.")
    return found


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


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
    arguments = {str(key): _built(value) for key, value in node.items() if key != "_target_"}
    return resolve_target(str(node["_target_"]))(**arguments, **runtime)


def _built(value: Any) -> Any:
    """Returns ``value`` with every node in it that has a ``_target_`` built."""
    if isinstance(value, list):
        return [_built(item) for item in value]
    if not isinstance(value, dict):
        return value
    return _build(value, {}) if "_target_" in value else {key: _built(item) for key, item in value.items()}
