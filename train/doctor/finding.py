"""What a check of ``physedit doctor`` found."""

import re
from dataclasses import dataclass
from enum import StrEnum

_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z])")


class State(StrEnum):
    """How a check came out: an error ends the run sooner or later, a warning may."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the check's name, its state, what was found and, unless all is well, what to do about it."""

    check: str
    state: State
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    """Returns that nothing is wrong."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """Returns that something may go wrong."""
    return Finding(check, State.WARNING, found, remedy)


def error(check: str, found: str, remedy: str) -> Finding:
    """Returns that a run would fail."""
    return Finding(check, State.ERROR, found, remedy)


def refusal(check: str, refused: BaseException) -> Finding:
    """Returns the error of a refusal of ours, whose last sentence says what to do."""
    *found, remedy = _SENTENCE_END.split(" ".join(str(refused).split()))
    if not found:
        return error(check, remedy or type(refused).__name__, "Mend what it names.")
    return error(check, " ".join(found), remedy)


def exit_code(findings: list[Finding]) -> int:
    """Returns 1 if there is an error, else 0."""
    return int(any(finding.state is State.ERROR for finding in findings))
