"""Runs histories on a cluster, several at once, and checks each."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Sequence
from typing import Dict, List, NamedTuple

from cluster import LOSS_SECONDS, Cluster
from places import SeparateHosts
from run_history import recording
from run_history.clients import ANSWERS, Clients, Period, Place, PlannedSave, content, listed
from run_history.faults import FaultThread
from run_history.linearize import Operation, linearize
from run_history.model import Run
from run_history.plan import SECONDS, Plan, plan
from run_history.recording import OK, Call

import ckptd
from ckptd._run_retention import RetainedRun

LAST_TAG, LAST_STEP = "end", 1000  # No other save has them.
MAX_SHOWN = 12  # Operations that have no place.


class History(NamedTuple):
    """What happened in one root."""

    seed: int
    number: int
    plan: Plan
    calls: List[Call]
    problem: str  # What is wrong, in words; empty if nothing is.

    def __str__(self) -> str:
        faults = "\n".join(f"  {fault}" for fault in self.plan.faults)
        return f"seed {self.seed}, history {self.number}\nfaults:\n{faults}\n{recording.table(self.calls)}\n\n{self.problem}"


def problem_of(calls: Sequence[Call]) -> str:
    """Why no run could have answered so; empty if one could."""
    verdict = linearize(recording.operations(calls), Run())
    if verdict.explained:
        return ""
    zero = min(call.start for call in calls)

    def lines(operations: Sequence[Operation]) -> str:
        return "\n".join(f"  {each.start - zero:.3f} to {each.end - zero:.3f}  {each.effect}" for each in operations)

    return (
        f"no order of these calls explains their answers. The longest one that does:\n{lines(verdict.order)}\n"
        f"after which the run is\n  {verdict.state}\nand none of these can be next:\n{lines(verdict.left[:MAX_SHOWN])}"
    )


class Rounds:
    """A cluster on which plans are carried out, one after another."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.may_cut = isinstance(cluster.places, SeparateHosts)
        self._clients = Clients()
        self._roots = itertools.count(1)

    def run(self, seed: int, count: int) -> List[History]:
        """`count` histories with the same faults."""
        made = plan(seed, count, self.may_cut)
        roots = [str(self.cluster.shared / f"run{next(self._roots)}") for _ in range(count)]
        for root in roots:
            os.mkdir(root)
        calls = self._carry_out(made, roots)
        ends = self._end([len(each.launches) for each in made.histories], roots)
        histories = []
        for number, root in enumerate(roots):
            all_calls = calls[number] + ends[number]
            problem = problem_of(all_calls) or self._problem_at_the_end(root, ends[number])
            histories.append(History(seed, number, made, all_calls, problem))
        return histories

    def _places(self) -> List[Place]:
        return [Place(node.name, node.endpoint) for node in self.cluster.nodes]

    def _carry_out(self, made: Plan, roots: Sequence[str]) -> Dict[int, List[Call]]:
        begin = time.monotonic() + 0.5  # The processes are there by then.
        end = begin + SECONDS
        for number, (history, root) in enumerate(zip(made.histories, roots)):
            for launch, planned in enumerate(history.launches, 1):
                self._clients.start_launch(number, self._places(), root, launch, Period(begin + planned.at, end), planned.saves)
            self._clients.start_operator(number, self._places(), root, Period(begin, end), history.acts)
        failing = FaultThread(self.cluster, made.faults, roots[0], begin)
        failing.start()
        calls = self._clients.finish()
        failing.finish()
        self.cluster.wait_until_registered()
        return calls

    def _end(self, launches: Sequence[int], roots: Sequence[str]) -> Dict[int, List[Call]]:
        """When nothing fails any more, another launch goes on, and all nodes show the same."""
        for number, (launch, root) in enumerate(zip(launches, roots)):
            self._clients.start_launch(number, self._places(), root, launch + 1, Period(0, math.inf), [PlannedSave(LAST_STEP, LAST_TAG, 0)])
        calls = self._clients.finish()
        for number, root in enumerate(roots):
            calls[number] += self._read_alike(root)
        return calls

    def _read_alike(self, root: str) -> List[Call]:
        calls: List[Call] = []
        clients = [ckptd.connect(node.endpoint) for node in self.cluster.nodes]
        runs = [RetainedRun(client.open(root)._access) for client in clients]
        lists: List[object] = []

        def alike() -> bool:
            lists[:] = [listed(run) for run in runs]
            return all(each == lists[0] for each in lists)

        deadline = time.monotonic() + LOSS_SECONDS
        while not alike() and time.monotonic() < deadline:
            time.sleep(0.1)
        for place, run in zip(self._places(), runs):
            for name in ("list", "latest"):
                call = Call("reader", place.node, name, time.monotonic(), fresh=True)
                call.found = ANSWERS[name](run, "")
                call.end, call.answer = time.monotonic(), OK
                calls.append(call)
        for client in clients:
            client.close()
        return calls

    def _problem_at_the_end(self, root: str, calls: Sequence[Call]) -> str:
        """The last launch must have saved, and the bytes of all checkpoints must be whole."""
        answers = [(call.client, call.name, call.answer, call.error) for call in calls if call.answer != OK]
        if answers:
            return f"when nothing failed any more, the next launch got {answers}"
        for info in ckptd.open_root(root).list():
            with ckptd.open_root(root).open(info.tag) as checkpoint:
                for rank in range(len(self.cluster.nodes)):
                    if bytes(checkpoint.read(f"rank{rank}.raw")) != content(info.step or 0, rank):
                        return f"rank {rank} of {info.tag} has other bytes than step {info.step}"
        return ""
