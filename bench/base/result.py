"""One figure, the limit that it is held against, and whether it meets the goal of docs/design.md."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import List, Optional


@dataclasses.dataclass
class Result:
    name: str
    value: float
    unit: str
    limit: Optional[str] = None  # A description, with the value that this run measured.
    goal: Optional[float] = None
    at_least: bool = False  # The goal is a lower bound; else an upper bound.

    @property
    def ok(self) -> Optional[bool]:
        """None if there is no goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def as_json(results: List[Result]) -> str:
    rows = [
        {
            "name": r.name,
            "value": round(r.value, 5),
            "unit": r.unit,
            "limit": r.limit,
            "goal": r.goal,
            "ok": r.ok,
        }
        for r in results
    ]
    return json.dumps(rows, indent=1)


def as_table(results: List[Result]) -> str:
    lines = [
        f"{'figure':<31} {'value':>9} {'unit':<10} {'goal':>9}      limit, as measured in this run",
        "-" * 110,
    ]
    for r in results:
        goal = "" if r.goal is None else f"{'>=' if r.at_least else '<='} {r.goal:g}"
        mark = {None: "", True: "ok", False: "MISS"}[r.ok]
        words = textwrap.wrap(r.limit or "", 60) or [""]
        lines.append(f"{r.name:<31} {r.value:>9.3f} {r.unit:<10} {goal:>9} {mark:<4} {words[0]}".rstrip())
        lines.extend(" " * 68 + more for more in words[1:])
    return "\n".join(lines)
