"""How long an instruction an editor's text encoders take, told without loading them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

TokenCounter = Callable[[str], int]


class Overlong(StrEnum):
    """What becomes of an instruction beyond a limit. The values stay stable: reports and other programs read them."""

    CUT = "cut"
    HARMLESS = "harmless"
    """This encoder sees its beginning alone, but another one reads all of it."""
    UNUSUAL = "unusual"
    """It is read in full, but is longer than what the stock pipeline is meant for."""
    STOPS = "stops training"
    """The editor has no positions for its last tokens and fails."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """The limit of one text encoder. Picklable.

    Attributes:
        encoder: what it is called.
        max_tokens: the longest instruction, in the tokens that ``count`` counts.
        overlong: what becomes of a longer one.
        why: the same in a sentence.
        count: counts the tokens of an instruction with the encoder's own tokenizer; None where that is not at hand.
        not_counted: why there is no ``count``; empty if there is one.
    """

    encoder: str
    max_tokens: int
    overlong: Overlong
    why: str
    count: TokenCounter | None
    not_counted: str = ""
