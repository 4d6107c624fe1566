"""What can be told of an editor without loading its weights: sizes, number of pictures, lengths of instructions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physedit.data_loaders.text_limits import TextLimit
from physedit.models.pictures import SizeRule
from physedit.models.pipeline_folder import INDEX
from physedit.models.weights import cached_snapshot

RELEASED_VAE_FACTOR = 8
"""Pixels a side of a latent cell in the released editors of both families."""


@dataclass(frozen=True, slots=True)
class Outline:
    """An editor's rules. Picklable.

    Attributes:
        sizes_of: the size rule that ``Backbone.sizes_of`` of the loaded editor follows.
        max_sources: its ``max_sources``.
        text_limits: of each text encoder.
    """

    sizes_of: SizeRule
    max_sources: int
    text_limits: tuple[TextLimit, ...]


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


def local_files(weights: Path | str) -> Path | None:
    """Returns the folder of weights that are on this machine, as ``find_weights`` found them; None otherwise."""
    return weights if isinstance(weights, Path) else cached_snapshot(weights)


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


def setting(settings: Mapping[str, object], name: str, default: int) -> int:
    """Returns a whole number of a backbone's settings.

    Raises:
        ValueError: it is none.
    """
    value = settings.get(name, default)
    if not isinstance(value, int):
        raise ValueError(f"backbone.{name} is {value!r}, but a whole number is expected.")
    return value
