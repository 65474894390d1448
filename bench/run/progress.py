"""Shows on a terminal which round of which case runs, and how much time is left; elsewhere a line for each case."""

from __future__ import annotations

import os
import time
from typing import Dict, Sequence, TextIO

from bench.run.rounds import Budget, Observer, Progress


class ProgressLine(Observer):
    def __init__(
        self, stream: TextIO, cases: Sequence[Progress], descriptions: Dict[str, str], budget: Budget
    ) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._cases, self._descriptions, self._budget = cases, descriptions, budget
        self._case = cases[0]

    def begins(self, case: Progress) -> None:
        self._case = case
        if self._is_terminal:
            self._show()
        elif not case.values:
            self._print(f"{case.name}: {self._descriptions[case.name]}")

    def ticks(self) -> None:
        if self._is_terminal:
            self._show()

    def ended(self, case: Progress) -> None:
        if case.why:
            self.clear()
            self._print(f"{case.name}: {case.why}")

    def clear(self) -> None:
        """Leaves the terminal's line empty."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def text(self) -> str:
        """Such as "save: round 2 of 3, 1:23 elapsed, at least 4:05 left"."""
        case, budget = self._case, self._budget
        of = "" if budget.is_limited else f" of {case.wanted}"
        number = len(case.values) + 1
        return f"{case.name}: round {number}{of}, {_clock(budget.elapsed())} elapsed, {self._left()}"

    def _left(self) -> str:
        if self._budget.is_limited:
            return f"{_clock(max(0.0, self._budget.left()))} left"
        rest = [case for case in self._cases if not case.why and len(case.values) < case.wanted]
        seconds = sum((case.wanted - len(case.values)) * case.longest for case in rest)
        unknown = sum(1 for case in rest if not case.values)
        if not unknown:
            return f"about {_clock(seconds)} left"
        cases = "1 case" if unknown == 1 else f"{unknown} cases"
        return f"{f'at least {_clock(seconds)} left, ' if seconds else ''}{cases} not measured yet"

    def _show(self) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            width = 80
        self._stream.write(f"\r\x1b[K{self.text()[: width - 1]}")
        self._stream.flush()

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    return time.strftime("%-H:%M:%S" if seconds >= 3600 else "%-M:%S", time.gmtime(seconds))
