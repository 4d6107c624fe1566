"""What a benchmark hands to the runner: figures with unit, target and spread, as lines of JSON."""

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

_TARGET = re.compile(r"(?P<sign><=|>=|==) (?P<limit>-?\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Result:
    """One figure.

    Raises:
        ValueError: The target is not written as a sign and a number, or the value is not finite.
    """

    name: str
    """What was measured, in words that stand alone in a row of a table."""
    value: float
    unit: str
    """Unit of the value and of the target, empty for a ratio or a count."""
    target: str = ""
    """``<= 1.25``, ``>= 5``, ``== 0``, or empty where nothing is promised."""
    spread: str = ""
    """How far the repeats lay apart, and what the repeats were: ``1.01 to 1.04, 5 rounds``."""

    def __post_init__(self) -> None:
        if self.target and _TARGET.fullmatch(self.target) is None:
            raise ValueError(f"{self.name}: target {self.target!r} is not <=, >= or ==, a space and a number")
        if not math.isfinite(self.value):
            raise ValueError(f"{self.name}: the value is {self.value}, which is no measurement")

    @property
    def is_met(self) -> bool | None:
        """Whether the value keeps the target; None without one."""
        match = _TARGET.fullmatch(self.target)
        if match is None:
            return None
        limit = float(match["limit"])
        return {"<=": self.value <= limit, ">=": self.value >= limit, "==": self.value == limit}[match["sign"]]


def spread_of(values: Sequence[float], what: str) -> str:
    """Returns least and most of the values, and how many there are of ``what`` (``rounds``)."""
    if len(values) == 1:
        return f"1 {what.removesuffix('s')}"
    return f"{short(min(values))} to {short(max(values))}, {len(values)} {what}"


def short(value: float) -> str:
    """Returns a number with three digits that count, or all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json FILE``, whose value goes to ``report``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too, for the runner")


def report(results: Sequence[Result], json_path: Path | None) -> None:
    """Writes the figures as JSON where ``--json`` asked for it, and nothing without."""
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n", encoding="utf-8")


def read_results(json_path: Path) -> list[Result]:
    """Returns what ``report`` wrote.

    Raises:
        ValueError: A figure has other fields, or one of its values is refused.
    """
    return [as_result(entry) for entry in json.loads(json_path.read_text(encoding="utf-8"))]


def as_result(entry: dict[str, str | float]) -> Result:
    """Returns a figure from its JSON object.

    Raises:
        ValueError: It has other fields, or one of its values is refused.
    """
    names = [field.name for field in fields(Result)]
    if sorted(entry) != sorted(names):
        raise ValueError(f"a figure has the fields {sorted(entry)}, not {names}; write it with report()")
    name, unit, target, spread = (str(entry[key]) for key in ("name", "unit", "target", "spread"))
    return Result(name, float(entry["value"]), unit, target, spread)
