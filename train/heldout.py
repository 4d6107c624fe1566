"""The held-out side of a run's data, as a config node."""

from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from physedit.train.config import ConfigError

RESOLVER = "heldout_of"
"""In yaml, ``${heldout_of:${data}}`` is the data option with the other side of its split."""
_PER_MEMBER = ("weights", "levels")


def heldout_of(data: DictConfig) -> DictConfig:
    """Returns a data option's rows that are held out of it; of a mixture, those of the members that hold some out.

    An option that holds none out gives one without rows, which ``check_heldout`` refuses.
    """
    plain = OmegaConf.to_container(data, resolve=True)
    assert isinstance(plain, dict)
    return OmegaConf.create(_other_side({str(key): value for key, value in plain.items()}))


def register_heldout() -> None:
    """Makes the resolver known; may be called again."""
    OmegaConf.register_new_resolver(RESOLVER, heldout_of, replace=True)


def check_heldout(config: DictConfig) -> None:
    """Refuses an evaluation on rows that no split holds out of training.

    Raises:
        ConfigError: naming the settings that hold some out.
    """
    for name in map(str, config.eval):
        data = config.eval[name].get("data")
        if not isinstance(data, DictConfig):
            continue
        members = data.get("members")
        sides = [data] if members is None else [members[key] for key in members]
        asked = [side for side in sides if side.get("split") == "heldout"]
        if (members is not None and not members) or any(not side.get("heldout_share") for side in asked):
            of = "data" if members is None else "data.members.NAME"
            raise ConfigError(
                f"eval={name} measures rows that are held out of training, but the data hold none out. "
                f"Set {of}.split=train {of}.heldout_share=0.02, or leave {name} out of eval."
            )


def _other_side(options: dict[str, Any]) -> dict[str, Any]:
    if "members" not in options:
        given = {key: None if value == MISSING else value for key, value in options.items()}  # refused as data.KEY
        return {key: None if key == "limit" else value for key, value in given.items()} | {"split": "heldout"}
    members = {name: each for name, each in options["members"].items() if each.get("split") == "train"}
    per_member = {key: {name: options[key][name] for name in members if name in options[key]} for key in _PER_MEMBER}
    return {**options, **per_member, "members": {name: _other_side(each) for name, each in members.items()}}
