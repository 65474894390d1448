"""One figure, the limit that it is held against, and whether it meets the goal of docs/design.md."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import textwrap
from typing import Any, Callable, Dict, List, Optional, Sequence


@dataclasses.dataclass
class Result:
    name: str
    value: float
    unit: str
    limit: Optional[str] = None  # A description, with the value that this run measured.
    goal: Optional[float] = None
    at_least: bool = False  # The goal is a lower bound; else an upper bound.
    combine: Callable[[Sequence[float]], float] = statistics.median  # The values of several rounds, to one.
    rounds: int = 1  # That the value is of.
    least: float = math.nan  # Of the values of each round.
    most: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.least):
            self.least = self.most = self.value

    @property
    def ok(self) -> Optional[bool]:
        """None if there is no goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def combined(rounds: Sequence[Sequence[Result]]) -> List[Result]:
    """The figures of several rounds of a case, with the words of the round that is the nearest to the combined value."""
    by_name: Dict[str, List[Result]] = {}
    for figures in rounds:
        for figure in figures:
            by_name.setdefault(figure.name, []).append(figure)
    return [_combined(figures) for figures in by_name.values()]


def _combined(figures: List[Result]) -> Result:
    values = [figure.value for figure in figures]
    value = figures[0].combine(values)
    nearest = min(figures, key=lambda figure: abs(figure.value - value))
    return dataclasses.replace(nearest, value=value, rounds=len(values), least=min(values), most=max(values))


def as_json(results: List[Result], machine: Dict[str, str], not_run: Dict[str, str], quick: bool) -> str:
    rows: List[Dict[str, Any]] = [
        {
            "name": r.name,
            "value": round(r.value, 5),
            "unit": r.unit,
            "rounds": r.rounds,
            "least": round(r.least, 5),
            "most": round(r.most, 5),
            "limit": r.limit,
            "goal": r.goal,
            "ok": r.ok,
        }
        for r in results
    ]
    ended = [{"case": name, "why": why} for name, why in not_run.items()]
    return json.dumps({"machine": machine, "quick": quick, "figures": rows, "not_run": ended}, indent=1)


def as_table(results: List[Result]) -> str:
    lines = [
        f"{'figure':<31} {'value':>9} {'unit':<10} {'rounds':>6} {'goal':>9}      limit, as measured in this run",
        "-" * 118,
    ]
    for r in results:
        goal = "" if r.goal is None else f"{'>=' if r.at_least else '<='} {r.goal:g}"
        mark = {None: "", True: "ok", False: "MISS"}[r.ok]
        spread = f"{r.least:.3f} to {r.most:.3f}; " if r.least != r.most else ""
        words = textwrap.wrap(spread + (r.limit or ""), 60) or [""]
        start = f"{r.name:<31} {r.value:>9.3f} {r.unit:<10} {r.rounds:>6} {goal:>9} {mark:<4}"
        lines.append(f"{start} {words[0]}".rstrip())
        lines.extend(" " * 75 + more for more in words[1:])
    return "\n".join(lines)


def describe_not_run(not_run: Dict[str, str]) -> str:
    return "\n".join(f"{name}: {why}" for name, why in not_run.items())
