"""Composes a run's config from the shipped yaml and a command line's overrides.

Everything here happens before a weight or a picture is opened; every refusal is a ``ConfigError`` whose text is one
paragraph: what was asked, what was found, what to do.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from physedit.train.config import CONF_FOLDER, ConfigError, TrainConfig, one_line, options, suggestion
from physedit.train.heldout import register_heldout
from physedit.train.validation import validate

SWEEP_ADVICE = (
    "a sweep starts one launcher per trial, each with its own run_name: `physedit sweep FILE --local`, or launch=slurm "
    "launch.slurm.trials=FILE with the overrides of one trial a line."
)


def register_schema() -> None:
    """Makes ``TrainConfig`` known to Hydra as ``train_schema``, and our resolver; may be called again."""
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    register_heldout()


def compose_config(
    overrides: Sequence[str], *, config_name: str = "train", config_dir: Path | None = None
) -> DictConfig:
    """Composes ``conf/CONFIG_NAME.yaml`` with ``overrides`` and validates what needs no files.

    Args:
        overrides: Hydra overrides such as ``experiment=demo`` or ``optimizer.lr=1e-4``.
        config_name: the primary config.
        config_dir: a folder with further yaml groups, searched after the shipped ones.

    Raises:
        ConfigError: anything in the overrides or the composed result that cannot be used.
    """
    named = with_hooks_named(overrides, config_name=config_name, config_dir=config_dir)
    composed = _composed(named, config_name, config_dir)
    validate(composed)
    return composed


def with_hooks_named(
    overrides: Sequence[str], *, config_name: str = "train", config_dir: Path | None = None
) -> list[str]:
    """Returns the overrides with ``eval.KEY=VALUE`` as ``eval.HOOK.KEY=VALUE`` where one evaluation is chosen.

    Only a KEY that is a setting of that evaluation and no evaluation's name is taken so; all else stays as it is.

    Args:
        overrides: as for ``compose_config``.
        config_name: as for ``compose_config``.
        config_dir: as for ``compose_config``.

    Raises:
        ConfigError: several evaluations are chosen, or the overrides without these cannot be composed.
    """
    short = {each for each in overrides if _is_short(each)}
    if not short:
        return list(overrides)
    hooks = _composed([each for each in overrides if each not in short], config_name, config_dir).eval
    return [_long_form(each, hooks) if each in short else each for each in overrides]


def _composed(overrides: Sequence[str], config_name: str, config_dir: Path | None) -> DictConfig:
    register_schema()
    _refuse_hydra_settings(overrides)
    if config_dir is not None:
        if not config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder. Give the folder of your yaml groups.")
        overrides = [*overrides, f"hydra.searchpath=[file://{config_dir.resolve()}]"]
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF_FOLDER)):
            return compose(config_name=config_name, overrides=list(overrides))
    except HydraException as error:
        raise ConfigError(_explain(error, overrides, config_name)) from error
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{one_line(str(error))} (from: {' '.join(overrides)})") from error


def _is_short(override: str) -> bool:
    """True for what may be ``eval.KEY=VALUE`` of an evaluation that it does not name."""
    key, is_set, _ = override.partition("=")
    group, _, setting = key.partition(".")
    return bool(is_set) and group == "eval" and bool(setting) and setting.split(".")[0] not in options("eval")


def _long_form(override: str, hooks: DictConfig) -> str:
    setting = override.removeprefix("eval.")
    head = setting.partition("=")[0].split(".")[0]
    names = [str(name) for name in hooks if isinstance(hooks[name], DictConfig)]
    having = (
        [] if head in hooks else [name for name in names if head in list(hooks[name])]
    )  # a missing value is a key, too
    if not having:
        return override
    if len(names) > 1:
        raise ConfigError(
            f"{override} does not say which of the evaluations {', '.join(names)} is meant. Write "
            + " or ".join(f"eval.{name}.{setting}" for name in having)
            + "."
        )
    return f"eval.{names[0]}.{setting}"


def _refuse_hydra_settings(overrides: Sequence[str]) -> None:
    """Refuses what would configure Hydra's own runs, which are not used: it would have no effect."""
    for override in overrides:
        key = override.lstrip("+~").split("=", 1)[0]
        if key.startswith(("hydra.", "hydra/")) and key != "hydra.searchpath":
            raise ConfigError(
                f"{override} has no effect: Hydra composes the config and starts nothing. The run folder is "
                f"OUTPUT_ROOT/RUN_NAME, and {SWEEP_ADVICE}"
            )


def _explain(error: HydraException, overrides: Sequence[str], config_name: str) -> str:
    """Turns Hydra's message into one that does not advise to add a misspelled key with '+'."""
    text = str(error)
    if "To sweep over it, add --multirun" in text:
        asked = text.split("'")[1]
        return (
            f"{asked} gives several values to one run. Write key=[a,b] for a list, or quote the value, key='a,b', for "
            f"text; {SWEEP_ADVICE}"
        )
    for override in reversed(overrides):
        key = override.lstrip("+~").split("=", 1)[0].strip()
        group = key.split("@")[0]
        if key.startswith("launch.env") and "Could not override" in text:
            return f"{key}: a variable is added with a plus, as +launch.env.NCCL_DEBUG=INFO."
        names = [f.name for f in fields(TrainConfig)] + ["experiment"]
        if f"'{key}'" in text and "Could not override" in text:
            head, *rest = key.split(".")
            if head not in names:
                return f"{key} is not a setting of {config_name}.{suggestion(head, names)} See: physedit config show."
            known = _keys_below(head)
            hint = suggestion(rest[-1], known) if rest else ""
            return f"{key} is not a setting of {config_name}.{hint} Known below {head}: {', '.join(known)}."
        if f"'{group}/" in text and "Could not find" in text:
            asked = override.split("=", 1)[1]
            return f"{group}={asked} is not an option of {group}.{suggestion(asked, options(group))} " + (
                f"Options: {', '.join(options(group))}."
            )
    return one_line(f"{text}: {error.__cause__}" if error.__cause__ else text)


def _keys_below(head: str) -> list[str]:
    """Returns the keys a user can set below a top-level name: of its schema, or of its shipped options."""
    schema = OmegaConf.structured(TrainConfig)
    if isinstance(OmegaConf.to_container(schema, throw_on_missing=False).get(head), dict):  # type: ignore[union-attr]
        return [str(key) for key in schema[head]]
    keys: set[str] = set()
    for path in (CONF_FOLDER / head).glob("*.yaml"):
        loaded = OmegaConf.load(path)
        keys.update(str(key) for key in loaded if key not in ("_target_", "defaults"))
    return sorted(keys)
