"""What the clients of a run recorded, as a table for people and as operations of the model."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, Dict, List, Optional, Tuple

from run_history.linearize import Operation
from run_history.model import (
    Begun,
    Committed,
    CommittedAndFailed,
    Damaged,
    Deleted,
    Failed,
    Kept,
    Latest,
    Listed,
    Missing,
    Pinned,
    PinsListed,
    Resumed,
    ResumeFailed,
    Save,
)

OK = "ok"
# Reasons (docs/protocol.md) after which a save never becomes a checkpoint.
FAILED = frozenset(
    "ADMISSION_TIMEOUT FENCED IO_ERROR NODE_LOST NO_SPACE PINNED POOL_EXHAUSTED RANKS_MISSING ROOT_CHANGED SAVE_ABORTED SAVE_CONFLICT "
    "SESSION_LOST SKIPPED STAGED_LOST SUPERSEDED TAG_FOREIGN".split()
)
DAMAGE = frozenset(["CHECKPOINT_DAMAGED", "CORRUPT"])
# A change of an operator that was refused with one of these was not made.
REFUSED = frozenset("BEING_READ BEING_REMOVED DAMAGE_FOUND REMOVAL_FOUND PINNED".split())
# The client and the daemon repeat a request whose answer was lost, so a call that has taken longer may have taken effect twice: the
# last answer is about the last time.
REPEATED_AFTER = 0.5


@dataclasses.dataclass
class Call:
    """One call of one client. `answer` is OK, or the reason of the error; empty if there was none."""

    client: str
    node: str
    name: str
    start: float
    attempt: int = 0  # Of a rank; 0 if it has not joined the run.
    step: int = 0  # Of a save.
    tag: str = ""
    staged: Optional[float] = None  # When a save's bytes were copied.
    end: Optional[float] = None
    answer: str = ""
    error: str = ""
    found: Any = None  # What it returned.
    fresh: bool = False  # It shows all that was acknowledged before it, on any node.


def write(path: pathlib.Path, calls: Sequence[Call]) -> None:
    path.write_text(json.dumps([dataclasses.asdict(call) for call in calls], indent=0))


def read(path: pathlib.Path) -> List[Call]:
    calls = [Call(**entry) for entry in json.loads(path.read_text())]
    for call in calls:
        if isinstance(call.found, list):
            call.found = [tuple(entry) for entry in call.found]
    return calls


def operations(calls: Sequence[Call]) -> List[Operation]:
    """The operations of a history. Calls that read and failed tell nothing, and are left out."""
    made: List[Operation] = []
    saves: Dict[int, List[Call]] = {}
    resumes: Dict[int, List[Call]] = {}
    for call in calls:
        if call.answer in DAMAGE:
            made.append(Operation(Damaged(f"{call.name} {call.tag}"), call.start, _end(call)))
        elif call.name == "save":
            saves.setdefault(call.step, []).append(call)
        elif call.name == "resume":
            resumes.setdefault(call.attempt, []).append(call)
        else:
            made += _single(call)
    for ranks in saves.values():
        made += _save(ranks)
    made += [_resume(ranks) for ranks in resumes.values()]
    return made


def _end(call: Call) -> float:
    return math.inf if call.end is None else call.end


def _known(calls: Sequence[Call]) -> Tuple[Tuple[str, float], ...]:
    return tuple((call.node, _end(call)) for call in calls)


def _save(ranks: Sequence[Call]) -> List[Operation]:
    """A save is two operations: it gets its sequence, and it ends."""
    first = ranks[0]
    save = Save(first.step, first.tag, max(call.attempt for call in ranks))
    start = min(call.start for call in ranks)
    end = max(_end(call) for call in ranks)
    staged = [call.staged for call in ranks if call.staged is not None]
    answers = {call.answer for call in ranks}
    committed, failed = OK in answers, bool(answers & FAILED)
    # Before the first rank could copy, the save had its sequence. Where none could, it may have had none.
    begun = Operation(Begun(save), start, min(staged) if staged else end if failed else math.inf, bool(staged) or failed)
    heard = [call for call in ranks if call.answer == OK or call.answer in FAILED]
    if committed and failed:
        return [begun, Operation(CommittedAndFailed(save), start, end, after=begun)]
    if committed:
        return [begun, Operation(Committed(save), start, min(_end(call) for call in heard), known=_known(heard), after=begun)]
    if failed:
        return [begun, Operation(Failed(save), start, min(_end(call) for call in heard), known=_known(heard), after=begun)]
    return [begun, Operation(Committed(save), start, happened=False, after=begun)]


def _resume(ranks: Sequence[Call]) -> Operation:
    attempt, start = ranks[0].attempt, min(call.start for call in ranks)
    got = [call for call in ranks if call.answer == OK]
    if not got:
        return Operation(ResumeFailed(attempt), start, happened=False)
    steps = tuple(sorted({call.found for call in got}))
    return Operation(Resumed(attempt, steps), start, min(_end(call) for call in got), known=_known(got))


def _single(call: Call) -> List[Operation]:
    """Of one client alone."""
    ok, known = call.answer == OK, _known([call])
    if call.name in ("list", "latest"):
        if not ok:
            return []
        if call.name == "latest":
            shown = [Latest(call.found)]
        else:
            shown = [Listed(tuple((step, tag) for step, tag, _ in call.found)), PinsListed(tuple(call.found))]
        stale_on = "" if call.fresh else call.node
        return [Operation(each, call.start, _end(call), known=known, stale_on=stale_on) for each in shown]
    if call.answer == "CHECKPOINT_KEPT":
        return [Operation(Kept(call.tag), call.start, _end(call), known=known)]
    if call.answer in REFUSED:
        return []
    step = call.found if ok else 0
    effect = Deleted(call.tag, step) if call.name == "delete" else Pinned(call.tag, call.name == "pin", step)
    was_repeated = _end(call) - call.start > REPEATED_AFTER
    # A deletion of what the first one has deleted finds nothing.
    earlier = [Operation(effect, call.start, happened=False)] if was_repeated and (call.name != "delete" or not ok) else []
    if call.answer == "NO_CHECKPOINT":
        return [*earlier, Operation(Missing(call.tag), call.start, _end(call), known=known, stale_on=call.node)]
    if not ok:
        return [Operation(effect, call.start, happened=False)]
    return [*earlier, Operation(effect, call.start, _end(call), known=known)]


def table(calls: Sequence[Call]) -> str:
    """The history, in the order in which the calls started."""
    zero = min((call.start for call in calls), default=0.0)
    rows: List[Tuple[str, ...]] = [("start", "staged", "end", "client", "attempt", "node", "call", "answer")]
    for call in sorted(calls, key=lambda call: call.start):
        what = {"save": f"save {call.tag} step {call.step}", "resume": "resume"}.get(call.name, f"{call.name} {call.tag}")
        found = "" if call.found is None else f" {call.found}"
        start, staged, end = ("-" if at is None else f"{at - zero:.3f}" for at in (call.start, call.staged, call.end))
        attempt = str(call.attempt or "")
        rows.append((start, staged, end, call.client, attempt, call.node, what.strip(), (call.answer or "unknown") + found))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
