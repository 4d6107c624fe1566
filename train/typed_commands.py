"""Programs that evaluations start are the user's own: one that a run brings along is not started unasked."""

from collections.abc import Sequence

from omegaconf import DictConfig

from physedit.eval_hooks.command import CommandHook
from physedit.train.build import resolve_target
from physedit.train.config import ConfigError


def check_typed_commands(config: DictConfig, typed: Sequence[str]) -> None:
    """Verifies that each program which the config's hooks start was named on this command line.

    The overrides of a run may come from another person, with its checkpoints.

    Args:
        config: composed from a run's overrides and ``typed``.
        typed: the overrides of this command line.

    Raises:
        ConfigError: a program that only the run names.
    """
    for name in map(str, config.eval):
        node = config.eval[name]
        if not issubclass(resolve_target(str(node["_target_"])), CommandHook):
            continue
        key = f"eval.{name}.command"
        if not any(each.split("=", 1)[0].lstrip("+") == key for each in typed):
            raise ConfigError(
                f"The run's own settings start a program, {key}={list(node.command)}. If you trust it, give "
                f"{key}=[...] here again; or choose other evaluations with eval=NAME."
            )
