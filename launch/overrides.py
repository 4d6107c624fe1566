"""Hydra overrides whose value is exactly the one that was meant: the inner of two quoting levels.

The outer level, a shell's, is for whoever types or prints a command; a list of arguments has none.
"""

import re
from collections.abc import Mapping

from physedit.launch.plan import LaunchError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_READ_AS_OTHER = re.compile(r"null|true|false|nan|inf", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_KEY = re.compile(r"\s*(?:\+\+|\+|~)?([^=@\s]+)")


def override(key: str, value: object) -> str:
    """Returns ``key=value`` such that the config holds exactly ``value``."""
    return f"{key}={quoted(value)}"


def quoted(value: object) -> str:
    """Returns ``value`` as Hydra's grammar reads it back: the same text, number, truth value, null, list or mapping.

    Raises:
        LaunchError: a value, or a key of a mapping, that the grammar has no form for; or text with ``${``, which a
            config resolves, and more than once.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) and not _READ_AS_OTHER.fullmatch(value) else _quoted_text(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(quoted(each) for each in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_mapping_key(key)}:{quoted(each)}" for key, each in value.items()) + "}"
    raise LaunchError(
        f"{value!r} ({type(value).__name__}) cannot be the value of a setting. Use text, a number, a list."
    )


def swept(key: str, value: object) -> str:
    """Returns ``key=value`` of a sweep: exact, but text that looks like a number or null is one.

    A sweep file has no other way to say null to wandb's agent, and plain yaml reads ``1e-4`` as text.
    """
    return f"{key}={value}" if isinstance(value, str) and is_other_than_text(value) else override(key, value)


def is_other_than_text(text: str) -> bool:
    """True for text that Hydra reads, unquoted, as a number, a truth value or null."""
    return bool(_READ_AS_OTHER.fullmatch(text) or _NUMBER.fullmatch(text))


def key_of(text: str) -> str:
    """Returns what an override sets: ``optimizer.lr`` of ``++optimizer.lr=1``, ``data`` of ``data@x=pairs``."""
    found = _KEY.match(text)
    return found[1] if found else ""


def _quoted_text(text: str) -> str:
    if "${" in text:
        raise LaunchError(
            f"{text!r} holds ${{, which settings resolve and cannot hold as text. Write what it stands for."
        )
    # Hydra halves backslashes before a quote, and only there.
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    ending = len(text) - len(text.rstrip("\\"))
    return f"'{text}{chr(92) * ending}'"


def _mapping_key(key: object) -> str:
    if isinstance(key, str) and _WORD.fullmatch(key):
        return key
    raise LaunchError(f"{key!r} cannot be the key of a mapping on a command line. Use letters, digits, '_' and '.'.")
