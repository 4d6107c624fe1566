"""Which instructions an editor takes, told without loading its encoders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from physedit.data_loaders.problems import RowProblem

TokenCounter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class TextRefusal:
    """Why an editor cannot take an instruction: ``reason`` to count by, ``message`` with what to do."""

    reason: RowProblem
    message: str


class TextRule(Protocol):
    """Tells whether an editor takes an instruction. Pure and picklable; it refuses exactly what encoding refuses."""

    def __call__(self, sizes: Sequence[tuple[int, int]], instruction: str) -> TextRefusal | None:
        """Returns why the instruction cannot be taken; None if it can.

        Args:
            sizes: height and width of the stored pictures that it is seen with: the source, then references.
            instruction: as stored.
        """
        ...


class Overlong(StrEnum):
    """What becomes of an instruction beyond a limit. The values stay stable: reports and other programs read them."""

    CUT = "cut"
    HARMLESS = "harmless"
    """This encoder sees its beginning alone, but another one reads all of it."""
    UNUSUAL = "unusual"
    """It is read in full, but is longer than what the stock pipeline is meant for."""
    DROPPED = "dropped"
    """The editor has no positions for its last tokens, so the row is dropped; see ``TextRule``."""


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
