"""Decides whether a recorded history has an order that a sequential model allows: the algorithm of Wing and Gong, with the cache of
Lowe ("Testing for linearizability", 2017).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Hashable, List, Optional, Protocol, Tuple

State = Hashable
MAX_TRIED = 500_000  # Sets of operations with a state: a minute. A history of a few hundred operations takes a few thousand.


class Effect(Protocol):
    """What an operation did, with its answer."""

    reads_only: bool  # It never changes a state.

    def apply(self, state: State) -> Optional[State]:
        """The state after it; None if it cannot have had this answer in this state."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a history. It took effect at one moment between its start and its end."""

    effect: Effect
    start: float  # Seconds on a clock that all clients share.
    end: float = math.inf  # Infinite if the outcome is unknown: it may take effect at any time after its start.
    happened: bool = True  # False: it may also never take effect.
    known: Tuple[Tuple[str, float], ...] = ()  # From when on a node knew of its effect.
    stale_on: str = ""  # It shows what this node had seen, which may be older than its start. Empty: it shows what there is.
    after: Optional["Operation"] = None  # An operation that took effect earlier, if this one did.

    def follows(self, earlier: Operation) -> bool:
        """Whether `earlier` must take effect first, or not at all."""
        if earlier is self.after:
            return True
        if not earlier.happened:
            return False
        if self.stale_on:
            return any(node == self.stale_on and since < self.start for node, since in earlier.known)
        return earlier.end < self.start


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The longest order that the model allows. The history is explained if no operation that happened is left."""

    order: Tuple[Operation, ...]
    left: Tuple[Operation, ...]  # What happened and has no place after `order`.
    state: State  # After `order`.

    @property
    def explained(self) -> bool:
        return not self.left


def linearize(operations: Sequence[Operation], state: State) -> Verdict:
    """Looks for an order of `operations`, from `state` on."""
    history = sorted(operations, key=lambda operation: (operation.start, operation.end))
    before = [sum(1 << j for j, other in enumerate(history) if operation.follows(other)) for operation in history]
    needed = sum(1 << i for i, operation in enumerate(history) if operation.happened)

    best: Tuple[int, List[int], State] = (-1, [], state)
    seen = set()
    # Depth first, without recursion: what is done (a set of bits), in which order, and the state after it. An operation that may
    # never have taken effect need not be done.
    pending: List[Tuple[int, Tuple[int, ...], State]] = [(0, (), state)]
    while pending:
        done, order, now = pending.pop()
        done, order = _read_what_may_be_read(history, before, done, order, now)
        if (done, now) in seen:
            continue
        seen.add((done, now))
        if len(seen) > MAX_TRIED:
            raise RuntimeError(f"not decided after {MAX_TRIED} states; too many of the {len(history)} operations are concurrent")
        placed = bin(done & needed).count("1")
        if placed > best[0]:
            best = (placed, list(order), now)
        if done & needed == needed:
            break
        # What started first is tried first, so it is pushed last.
        for i in reversed(_candidates(before, done)):
            following = history[i].effect.apply(now)
            if following is not None:
                pending.append((done | 1 << i, (*order, i), following))
    _, found, last = best
    placed_bits = set(found)
    return Verdict(
        tuple(history[i] for i in found),
        tuple(operation for i, operation in enumerate(history) if operation.happened and i not in placed_bits),
        last,
    )


def _candidates(before: List[int], done: int) -> List[int]:
    """The operations that may be next: all that they follow is done."""
    return [i for i, earlier in enumerate(before) if not done >> i & 1 and not earlier & ~done]


def _read_what_may_be_read(
    history: List[Operation], before: List[int], done: int, order: Tuple[int, ...], state: State
) -> Tuple[int, Tuple[int, ...]]:
    """A read that is allowed now can only make room for others: no need to try it later."""
    progress = True
    while progress:
        progress = False
        for i in _candidates(before, done):
            if history[i].effect.reads_only and history[i].effect.apply(state) is not None:
                done |= 1 << i
                order = (*order, i)
                progress = True
    return done, order
