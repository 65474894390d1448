"""Which case has its next round when: the rounds of all cases interleave, until each has enough or the time is over."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from bench.run.round_process import RoundFailed, RoundTooLong

# A round hangs if it takes so many times as long as the longest before, and so many seconds more.
HANG_FACTOR, HANG_SECONDS = 4.0, 60.0
_END_SHARE, _END_SECONDS = 0.05, 5.0  # Of the time, at most; to remove what is left, and to print.


class Budget:
    """The time that is given. minutes: None for all the time that it takes. start: when it began, as `now` tells it."""

    def __init__(
        self, minutes: Optional[float], now: Callable[[], float] = time.monotonic, start: Optional[float] = None
    ) -> None:
        self._now = now
        self.start = now() if start is None else start
        seconds = math.inf if minutes is None else minutes * 60
        self.is_limited = minutes is not None
        self.end = self.start + seconds
        self._last = self.end - min(_END_SECONDS, seconds * _END_SHARE) if self.is_limited else math.inf

    def now(self) -> float:
        return self._now()

    def elapsed(self) -> float:
        return self._now() - self.start

    def left(self) -> float:
        """Seconds for rounds."""
        return self._last - self._now()


@dataclasses.dataclass
class Progress:
    """How far a case has come."""

    name: str
    wanted: int  # Rounds, if the time is not limited.
    values: List[Any] = dataclasses.field(default_factory=list)  # What each round has returned.
    longest: float = 0.0  # Seconds of a round.
    why: str = ""  # It has no more rounds, or why it has none.
    failed: bool = False

    @property
    def is_complete(self) -> bool:
        return bool(self.values) and not self.failed


class Observer:
    """Told what happens. The base class ignores it."""

    def begins(self, case: Progress) -> None: ...

    def ticks(self) -> None: ...

    def ended(self, case: Progress) -> None: ...


Measure = Callable[[Progress, int, float], Any]  # Case, number of the round, limit in seconds -> the round's value.


def run(cases: Sequence[Progress], budget: Budget, measure: Measure, observer: Observer) -> None:
    """Gives each case a round, then each its second one, and so on. How long a round takes is what its longest one took.

    With a limited time the last turn is the one in which a case has no time for another round.
    """
    is_over = False
    while not is_over:
        turn = [case for case in cases if not case.why and (budget.is_limited or len(case.values) < case.wanted)]
        if not turn:
            return
        for case in turn:
            left = budget.left()
            if left <= case.longest:
                is_over = True
                if not case.values:
                    case.why = "the time was over before its first round"
                continue
            _measure(case, left, budget, measure, observer)
            is_over = is_over or budget.left() <= 0


def _measure(case: Progress, left: float, budget: Budget, measure: Measure, observer: Observer) -> None:
    hangs_after = case.longest * HANG_FACTOR + HANG_SECONDS if case.values else math.inf
    number = len(case.values) + 1
    observer.begins(case)
    begin = budget.now()
    try:
        value = measure(case, number, min(left, hangs_after))
    except RoundFailed as error:
        case.why, case.failed = f"round {number} has failed: {error}", True
    except RoundTooLong as error:
        hangs = hangs_after < left
        case.failed = hangs
        case.why = f"round {number} hangs: {error}" if hangs else f"the time was over in round {number}, {error}"
    else:
        case.values.append(value)
    case.longest = max(case.longest, budget.now() - begin)
    observer.ended(case)


def not_run(cases: Sequence[Progress]) -> Dict[str, str]:
    """Why cases have no figures, or fewer rounds than they should have."""
    return {case.name: f"{_count(len(case.values))}: {case.why}" for case in cases if case.why}


def _count(rounds: int) -> str:
    return "not run" if rounds == 0 else "1 round only" if rounds == 1 else f"{rounds} rounds only"
