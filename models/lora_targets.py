"""From regular expressions to the linear layers they name, with help for those that name none."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from torch import nn

_NUM_NEAR = 3


def matching_layers(denoiser: nn.Module, targets: Sequence[str]) -> list[str]:
    """Returns the full names of the linear layers that one of ``targets`` matches as a whole, in module order.

    Raises:
        ValueError: a target that is no regular expression or matches no linear layer; near matches are named.
    """
    linears = [name for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)]
    patterns = [_compiled(target) for target in targets]
    for target, pattern in zip(targets, patterns, strict=True):
        if not any(pattern.fullmatch(name) for name in linears):
            raise ValueError(
                f"adapter.targets has {target!r}, which matches none of the {len(linears)} linear layers of "
                f"{type(denoiser).__name__}. {_hint(target, linears)} A target is a regular expression over the whole "
                "name of a layer; see the presets of the backbone."
            )
    matching = [name for name in linears if any(pattern.fullmatch(name) for pattern in patterns)]
    if not matching:
        raise ValueError("No LoRA targets were given. Set adapter.preset or adapter.targets.")
    return matching


def shortened(names: Sequence[str]) -> str:
    """Returns the first names in one phrase, and how many more there are."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") if names else "none"


def _compiled(target: str) -> re.Pattern[str]:
    try:
        return re.compile(target)
    except re.error as error:
        raise ValueError(
            f"adapter.targets has {target!r}, which is no regular expression: {error}. A target is one over the whole "
            r"name of a layer, such as transformer_blocks\.\d+\.attn\.to_q."
        ) from error


def _hint(target: str, linears: list[str]) -> str:
    pattern = re.compile(target)
    num_ending = sum(_matches_an_ending(pattern, name) for name in linears)
    if num_ending:
        whole = rf".*\.({target})" if "|" in target else rf".*\.{target}"
        return f"Did you mean {whole!r}? That is {num_ending} layers, whose names end so."
    near = _near(target, linears)
    if near:
        return f"Did you mean {' or '.join(near)}, with N a block's number?"
    return f"Their names are such as {shortened(_distinct(map(_generic, linears)))}, with N a block's number."


def _matches_an_ending(pattern: re.Pattern[str], name: str) -> bool:
    return any(pattern.fullmatch(name, dot.end()) for dot in re.finditer(r"\.", name))


def _near(target: str, linears: list[str]) -> list[str]:
    """Returns the generic names nearest to ``target``: whole ones, or those whose ending is near."""
    asked = _generic(re.sub(r"\\d[+*]?|\[0-9\][+*]?", "0", target).replace("\\", ""))
    whole = _distinct(map(_generic, linears))
    num_parts = asked.count(".") + 1
    by_ending = {".".join(name.split(".")[-num_parts:]): name for name in reversed(whole)}
    found = get_close_matches(asked, whole, n=_NUM_NEAR) or get_close_matches(asked, by_ending, n=_NUM_NEAR)
    return [by_ending.get(each, each) for each in found]


def _generic(name: str) -> str:
    """Returns ``name`` with N for a block's number: ``transformer_blocks.N.attn.to_q``."""
    return re.sub(r"(?<=blocks\.)\d+", "N", name)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
