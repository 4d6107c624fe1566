"""Curves of a metric over steps, as coordinates for an inline SVG. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from physedit.eval_hooks.hook import MetricChange

WIDTH, HEIGHT = 340, 200
LEFT, RIGHT = 60, 328
_TOP, _BOTTOM = 12, 30
_NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at a pixel position along an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over steps in SVG pixels.

    ``line`` and ``band`` are point lists; the band is the base plus the 95 % interval of the change, and ``base_y`` the
    height of the base's value.
    """

    title: str
    line: str
    band: str
    dots: tuple[tuple[float, float, str], ...]
    base_y: float
    ticks_x: tuple[Tick, ...]
    ticks_y: tuple[Tick, ...]


def draw_curve(
    title: str, points: Sequence[tuple[int, MetricChange]], label_of: Callable[[float], str]
) -> Curve | None:
    """Returns the curve through the defined points, or None without any.

    Args:
        title: heading of the curve.
        points: step and change, by ascending step.
        label_of: writes a value with its unit.
    """
    values = [
        _Point(step, change.base, change.tuned, *_bounds(change))
        for step, change in points
        if change.base is not None and change.tuned is not None
    ]
    if not values:
        return None
    if values[0].step > 0:
        base = values[0].base
        values.insert(0, _Point(0, base, base, base, base))
    low = min(min(p.low, p.tuned, p.base) for p in values)
    high = max(max(p.high, p.tuned, p.base) for p in values)
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    to_x = _scale(0, max(values[-1].step, 1), LEFT, RIGHT)
    to_y = _scale(low - margin, high + margin, HEIGHT - _BOTTOM, _TOP)
    upper = [(to_x(p.step), to_y(p.high)) for p in values]
    lower = [(to_x(p.step), to_y(p.low)) for p in reversed(values)]
    return Curve(
        title=title,
        line=_path([(to_x(p.step), to_y(p.tuned)) for p in values]),
        band=_path(upper + lower),
        dots=tuple((to_x(p.step), to_y(p.tuned), f"step {p.step}: {label_of(p.tuned)}") for p in values),
        base_y=to_y(values[-1].base),
        ticks_x=tuple(Tick(to_x(step), str(step)) for step in _some([p.step for p in values])),
        ticks_y=tuple(Tick(to_y(value), label_of(value)) for value in _round_values(low - margin, high + margin)),
    )


@dataclass(frozen=True, slots=True)
class _Point:
    step: int
    base: float
    tuned: float
    low: float
    high: float


def _bounds(change: MetricChange) -> tuple[float, float]:
    assert change.base is not None
    assert change.tuned is not None
    if change.ci95 is None:
        return change.tuned, change.tuned
    return change.base + change.ci95[0], change.base + change.ci95[1]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def _round_values(low: float, high: float) -> list[float]:
    """Returns the multiples of 1, 2 or 5 times a power of ten between the two, at most as many as can be read."""
    power = 10.0 ** math.floor(math.log10((high - low) / _NUM_TICKS))
    spacing = next(power * step for step in (1, 2, 5, 10) if (high - low) / (power * step) <= _NUM_TICKS)
    return [number * spacing for number in range(math.ceil(low / spacing), math.floor(high / spacing) + 1)]


def _some(steps: Sequence[int]) -> list[int]:
    """Returns first and last step and, evenly between, as many as can be read."""
    last = len(steps) - 1
    if last < _NUM_TICKS:
        return sorted(set(steps))
    return sorted({steps[round(last * i / (_NUM_TICKS - 1))] for i in range(_NUM_TICKS)})
