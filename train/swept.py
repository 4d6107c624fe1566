"""Values that a sweep gives to a run: they arrive exactly, and a run that would use others is refused.

wandb's agent starts a run with ``key=value`` as Python prints values, and tells them again in a file. Without that file
none of this applies.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from physedit.launch.overrides import key_of, swept
from physedit.train.config import ConfigError, options

SWEEP_VARIABLE = "WANDB_SWEEP_ID"
VALUES_VARIABLE = "WANDB_SWEEP_PARAM_PATH"
"""Names the file, below the folder in which the agent was started."""


def agent_values(environment: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Returns what wandb's agent gave to this run, by setting; nothing without an agent.

    Raises:
        ConfigError: the agent's file cannot be read.
    """
    if not environment.get(SWEEP_VARIABLE) or not environment.get(VALUES_VARIABLE):
        return {}
    path = Path(environment[VALUES_VARIABLE])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return {str(key): entry["value"] for key, entry in content.items() if isinstance(entry, dict)}
    except (OSError, yaml.YAMLError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"A sweep's agent started this run ({SWEEP_VARIABLE} is set), but the values it gave cannot be read from "
            f"{VALUES_VARIABLE}={path}: {error!r}. Start the run in the folder where the agent runs, and let its "
            "command change no folder."
        ) from error


def exact_overrides(given: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Returns the overrides with those of a sweep's values quoted, which the agent wrote as Python prints them."""
    printed = {f"{key}={value}": swept(key, value) for key, value in values.items()}
    return [printed.get(override, override) for override in given]


def check_swept(config: DictConfig, given: Sequence[str], values: Mapping[str, object]) -> None:
    """Verifies that the composed config holds the sweep's values.

    Raises:
        ConfigError: it does not, as where the sweep's command leaves them out or sets them again.
    """
    for key, value in values.items():
        setting = key_of(key)
        found: object
        if options(setting):
            chosen = [override.partition("=")[2] for override in given if override.partition("=")[0] == key]
            found = chosen[-1] if chosen else OmegaConf.select(config, f"{setting}._target_")
            is_same = bool(chosen) and chosen[-1] == swept(key, value).partition("=")[2]
        else:
            found = _plain(OmegaConf.select(config, setting))
            is_same = _is_same(found, value) or _is_same(found, _as_read(key, value))
        if not is_same:
            raise ConfigError(
                f"The sweep gives this run {key}={value}, but its config has {found}. The sweep's command must hold "
                "${args_no_hyphens}, and set nothing again that is swept."
            )


def check_tracked(tracked: Mapping[str, object], config: Mapping[str, object]) -> None:
    """Verifies that a tracker shows the config that the run uses.

    A sweep's server sets values in the tracker's config which a run does not use unless its command hands them over.

    Args:
        tracked: the tracker's config, nested or with dotted names.
        config: the run's own.

    Raises:
        ConfigError: a setting that both have differs.
    """
    ours = _flat(config)
    for key, value in _flat(tracked).items():
        if key in ours and not _is_same(ours[key], value) and not _is_same(ours[key], _as_read(key, value)):
            raise ConfigError(
                f"The tracker shows {key}={value}, but this run uses {ours[key]}. A sweep's command must hold "
                "${args_no_hyphens}, and set nothing again that is swept."
            )


def _is_same(found: object, value: object) -> bool:
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    return found == value or (isinstance(found, str) and found == str(value))


def _as_read(key: str, value: object) -> object:
    """Returns the value as Hydra reads its override: text such as ``null`` or ``1e-4`` becomes what it says."""
    return OverridesParser.create().parse_override(swept(key, value)).value()


def _plain(node: object) -> object:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _flat(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return flat
