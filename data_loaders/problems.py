"""Why a row of a data set cannot be used: the short names under which dropped rows are counted."""

from enum import StrEnum


class RowProblem(StrEnum):
    """A reason to drop a row. The values stay stable: reports and other programs read them."""

    NO_SOURCE = "no source picture"
    NO_TARGET = "no target picture"
    NO_REFERENCE = "no reference picture"
    MISSING_FILE = "missing picture file"
    NOT_READABLE = "picture file not readable"
    """It is there, but permission, disk or network refuse it: another try may read it as it is."""
    UNREADABLE = "unreadable picture"
    """The bytes are no picture of a known format, or its header is broken; or it is a pipe or device, no file."""
    DAMAGED = "damaged picture"
    """The header can be read, the pixels cannot: seen only when the picture is decoded."""
    TOO_LARGE = "too many pixels"
    TOO_SMALL = "too few pixels"
    FLOATING_POINT = "floating-point pixels"
    BLANK_PROMPT = "blank prompt"
    PROMPT_NO_TEXT = "prompt is no text"
    NOT_UTF8 = "text is not UTF-8"
    TEMPLATE_WORDS = "words of the editor's template in the prompt"
    """The editor takes them for pictures."""
    PROMPT_TOO_LONG = "prompt too long for the editor"
    """The editor has no positions for its last tokens."""
    NOT_FINITE = "encoded to not-a-number"
    """Its latents or text states hold NaN or infinity."""
    DAMAGED_ENTRY = "damaged entry of the encoded cache"
    NO_ROW = "line is no row"
    """A line of a table that is no JSON object, or has more cells than the table has columns."""
