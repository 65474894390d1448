"""Plots of a history as SVG: points over time, failures as crosses with their reason, readable as text."""

import dataclasses
import math
from typing import Callable, List, Optional, Sequence

from ckptd.web.text import at, escaped

_WIDTH, _HEIGHT = 420, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 10, 24


@dataclasses.dataclass(frozen=True)
class Point:
    """One event. `value` None: it failed, and has none."""

    time: float
    value: Optional[float]
    title: str  # Shown beneath the pointer.


def plot(name: str, points: Sequence[Point], unit: Callable[[float], str], step: int = 10) -> str:
    """Draws the points over their time. Empty without two of them. `step`: 1024 for bytes, whose scale is binary."""
    if len(points) < 2:
        return ""
    good = [point for point in points if point.value is not None]
    top = _round_up(max((point.value for point in good if point.value is not None), default=0.0), step)
    first, last = min(point.time for point in points), max(point.time for point in points)
    span = max(last - first, 1e-9)

    def x(time: float) -> float:
        return _LEFT + (time - first) / span * (_WIDTH - _LEFT - _RIGHT) if last > first else (_WIDTH + _LEFT) / 2

    def y(value: float) -> float:
        return _TOP + (1 - value / top) * (_HEIGHT - _TOP - _BOTTOM)

    marks: List[str] = []
    for line in range(3):
        value = top * line / 2
        marks.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escaped(unit(value))}</text>')
    marks.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{escaped(at(first))}</text>')
    if last > first:
        marks.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escaped(at(last))}</text>')
    path = " ".join(f"{x(point.time):.1f},{y(point.value or 0):.1f}" for point in good)
    if len(good) > 1:
        marks.append(f'<polyline class="line" points="{path}"/>')
    for point in points:
        title = f"<title>{escaped(point.title)}</title>"
        if point.value is None:
            left, bottom = x(point.time) - 4, y(0) - 4
            cross = f"M{left:.1f} {bottom:.1f}l8 8m0 -8l-8 8"
            marks.append(f'<g class="failure">{title}<path d="{cross}"/></g>')
        else:
            marks.append(
                f'<circle class="point" cx="{x(point.time):.1f}" cy="{y(point.value):.1f}" r="2.5">{title}</circle>'
            )
    failures = len(points) - len(good)
    said = f"{name}: {len(good)} values up to {unit(top)}" + (f", {failures} failures" if failures else "")
    return (
        f'<figure><figcaption>{escaped(name)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escaped(said)}">{"".join(marks)}</svg></figure>'
    )


def _round_up(value: float, step: int) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten, in the unit of that power of `step`; 1 for 0."""
    if value <= 0:
        return 1.0
    unit = float(step) ** math.floor(math.log(value, step)) if value >= 1 or step == 10 else 1.0
    power = 10.0 ** math.floor(math.log10(value / unit)) * unit
    rounded = next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * (1 + 1e-9))
    return unit * step if rounded >= 1000 * unit else rounded  # 1 GiB, and not 1000 MiB.
