"""What clients do and what fails in some histories at once, by a seed."""

from __future__ import annotations

import random
from typing import List, NamedTuple

from run_history.clients import Act, PlannedSave

SECONDS = 7.0  # How long clients start calls.
TAGS = ["a", "b", "c", "d"]
NODES = 3
COORDINATOR = -1  # The node that coordinates the first history when the fault begins.
# Longer than the lease, shorter, and so short that few notice.
_LENGTHS = (0.0, 0.5, 2.0, 9.0)
FAULTS = {
    "kill": "SIGKILL of the daemon, which is started again afterwards",
    "pause": "SIGSTOP of the daemon, and SIGCONT",
    "cut": "the node has no network, and no etcd",
    "etcd": "SIGKILL of etcd's leader, which is started again afterwards",
}


class Fault(NamedTuple):
    at: float  # Seconds after the start.
    kind: str
    node: int
    seconds: float

    def __str__(self) -> str:
        node = "the coordinator" if self.node == COORDINATOR else f"node {self.node}"
        where = "" if self.kind == "etcd" else f" {node}"
        return f"at {self.at:.1f} s for {self.seconds:.1f} s: {self.kind}{where}"


class PlannedLaunch(NamedTuple):
    at: float
    saves: List[PlannedSave]


class PlannedHistory(NamedTuple):
    launches: List[PlannedLaunch]  # An older one goes on until it is fenced off.
    acts: List[List[Act]]  # On each node.


class Plan(NamedTuple):
    faults: List[Fault]
    histories: List[PlannedHistory]


def plan(seed: int, histories: int, may_cut: bool) -> Plan:
    chosen = random.Random(seed)
    return Plan(_faults(chosen, may_cut), [_history(chosen) for _ in range(histories)])


def _faults(chosen: random.Random, may_cut: bool) -> List[Fault]:
    kinds = [kind for kind in FAULTS if may_cut or kind != "cut"]
    made = []
    for _ in range(chosen.choice([1, 2, 2, 3])):
        node = chosen.choice([COORDINATOR, *range(NODES)])
        made.append(Fault(chosen.uniform(0.5, SECONDS - 1), chosen.choice(kinds), node, chosen.choice(_LENGTHS)))
    return sorted(made)


def _history(chosen: random.Random) -> PlannedHistory:
    starts = sorted([0.0, *(chosen.uniform(1, SECONDS - 1) for _ in range(chosen.choice([0, 1, 1, 2])))])
    launches, step = [], 0
    for at in starts:
        saves = []
        for _ in range(chosen.randint(3, 10)):
            step += 1
            saves.append(PlannedSave(step, chosen.choice(TAGS), chosen.choice([0, 0, 0.1, 0.5])))
        launches.append(PlannedLaunch(at, saves))
    return PlannedHistory(launches, [_acts(chosen) for _ in range(NODES)])


def _acts(chosen: random.Random) -> List[Act]:
    names = ["list", "latest", "list", "latest", "pin", "unpin", "delete"]
    acts: List[Act] = []
    spent = 0.0
    while spent < SECONDS:
        pause = chosen.uniform(0.05, 1.0)
        spent += pause
        acts.append(Act(chosen.choice(names), chosen.choice(TAGS), pause))
    return acts
