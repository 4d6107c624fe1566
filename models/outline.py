"""What can be told of an editor without loading its weights: sizes, number of pictures, lengths of instructions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physedit.data_loaders.text_limits import TextLimit, TextRule
from physedit.models.pictures import SizeRule
from physedit.models.pipeline_folder import INDEX
from physedit.models.weights import cached_snapshot

RELEASED_VAE_FACTOR = 8
"""Pixels a side of a latent cell in the released editors of both families."""

MOST_GUIDANCE = 1000
"""Ours: far beyond every use; the pipelines overflow somewhere above."""


@dataclass(frozen=True, slots=True)
class Outline:
    """An editor's rules. Picklable.

    Attributes:
        sizes_of: the size rule that ``Backbone.sizes_of`` of the loaded editor follows.
        max_sources: its ``max_sources``.
        text_limits: of each text encoder.
        text_rule: which instructions it takes; None if it takes all, or if its tokenizer is not on this machine.
    """

    sizes_of: SizeRule
    max_sources: int
    text_limits: tuple[TextLimit, ...]
    text_rule: TextRule | None = None


class TokenCount:
    """A ``TokenCounter`` over a tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:  # transformers' tokenizers share no type that has __call__
        self._tokenizer = tokenizer

    @property
    def longest(self) -> int:
        """The number of tokens that the tokenizer cuts at where it is asked to."""
        return int(self._tokenizer.model_max_length)

    def __call__(self, text: str) -> int:
        """Returns the number of tokens of ``text``, those that the tokenizer adds included."""
        return len(self._tokenizer(text, verbose=False).input_ids)


def local_files(weights: Path | str, *parts: str) -> Path | None:
    """Returns the folder of weights that are on this machine, as ``find_weights`` found them; None otherwise.

    A snapshot of the hub without one of ``parts`` is one whose download has yet to go on.
    """
    if isinstance(weights, Path):
        return weights
    snapshot = cached_snapshot(weights)
    return snapshot if snapshot is not None and all((snapshot / part).is_dir() for part in parts) else None


def absent_files(weights: Path | str) -> str:
    """Says why instructions are not counted where ``local_files`` gives None."""
    return f"not counted: {weights} is not on this machine. Download it, or give a local folder."


def read_tokenizer(folder: Path, part: str) -> TokenCount:
    """Returns what counts the tokens of one tokenizer of a pipeline's folder.

    Raises:
        ValueError: it cannot be loaded.
    """
    import transformers

    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        kind: Any = getattr(transformers, index[part][1])
        return TokenCount(kind.from_pretrained(folder / part))
    # A damaged file shows as anything up to the tokenizers' bare Exception.
    except Exception as error:
        raise ValueError(
            f"The tokenizer in {folder / part} cannot be loaded: {type(error).__name__}: {error}. Download it again."
        ) from error


def vae_factor(folder: Path | None) -> int:
    """Returns the pixels a side of a latent cell, from the VAE's config; that of the released editors without one.

    Raises:
        ValueError: the config cannot be read.

    Source: FluxKontextPipeline.__init__, diffusers.
    """
    file = None if folder is None else folder / "vae" / "config.json"
    if file is None or not file.is_file():
        return RELEASED_VAE_FACTOR
    try:
        num_levels = len(json.loads(file.read_text(encoding="utf-8"))["block_out_channels"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is no config of a VAE: {type(error).__name__}: {error}. Download it again."
        ) from error
    return int(2 ** (num_levels - 1))


def checked_guidance(name: str, value: object) -> float:
    """Returns a guidance scale of a backbone's settings.

    Raises:
        ValueError: it is no number of 0 to ``MOST_GUIDANCE``.
    """
    if not isinstance(value, int | float) or not 0 <= value <= MOST_GUIDANCE:
        raise ValueError(f"backbone.{name} is {value}; it must be a number of 0 to {MOST_GUIDANCE}.")
    return float(value)


def setting(settings: Mapping[str, object], name: str, default: int) -> int:
    """Returns a whole number of a backbone's settings.

    Raises:
        ValueError: it is none.
    """
    value = settings.get(name, default)
    if not isinstance(value, int):
        raise ValueError(f"backbone.{name} is {value!r}, but a whole number is expected.")
    return value
