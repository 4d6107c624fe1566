"""Bars of accuracies, grouped by law, as coordinates for an inline SVG. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BARS_WIDTH, BARS_LEFT, BARS_RIGHT = 760, 250, 680
BAR_HEIGHT = 13
_ROW, _HEADING, _GAP = 17, 20, 12
_NUM_TICKS = 5

BarKind = Literal["copy", "base", "tuned", "paper"]


@dataclass(frozen=True, slots=True)
class BarValue:
    """A share of 1 to be drawn; ``interval`` is where it lies with 95 % confidence, None if that is not known."""

    kind: BarKind
    label: str
    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in SVG pixels: its top, its length from the left edge, and both ends of its interval."""

    kind: BarKind
    label: str
    text: str
    top: float
    length: float
    whisker: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars under one heading, whose baseline is at ``heading_y``."""

    label: str
    heading_y: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Groups below each other, with the positions and labels of the grid from 0 to 100 %."""

    groups: tuple[BarGroup, ...]
    ticks: tuple[tuple[float, str], ...]
    height: float


def draw_bars(groups: Sequence[tuple[str, Sequence[BarValue]]]) -> BarChart | None:
    """Returns the chart of the groups that have bars, or None without any.

    Args:
        groups: heading and bars of each, in order.
    """
    drawn, y = [], 0.0
    for label, values in groups:
        if not values:
            continue
        first = y + _HEADING
        bars = tuple(_bar(value, first + place * _ROW) for place, value in enumerate(values))
        drawn.append(BarGroup(label, y + _HEADING - 6, bars))
        y = first + len(bars) * _ROW + _GAP
    if not drawn:
        return None
    shares = [number / (_NUM_TICKS - 1) for number in range(_NUM_TICKS)]
    return BarChart(tuple(drawn), tuple((_x(share), f"{100 * share:.0f} %") for share in shares), y)


def _bar(value: BarValue, top: float) -> Bar:
    return Bar(
        kind=value.kind,
        label=value.label,
        text=f"{100 * value.value:.1f} %",
        top=top,
        length=round(_x(value.value) - BARS_LEFT, 1),
        whisker=None if value.interval is None else (_x(value.interval[0]), _x(value.interval[1])),
    )


def _x(share: float) -> float:
    """Returns the position of a share; intervals may reach beyond 0 and 1, the page does not."""
    return round(BARS_LEFT + min(max(share, 0.0), 1.0) * (BARS_RIGHT - BARS_LEFT), 1)
