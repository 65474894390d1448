"""Makes the faults of a plan happen, and ends them."""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
import time
from collections.abc import Sequence
from typing import Callable, List, Optional, Tuple

from cluster import Cluster, Node
from places import SeparateHosts
from run_history.plan import COORDINATOR, Fault

_End = Callable[[], None]


class FaultThread(threading.Thread):
    """Goes through the faults beside the clients. All have ended when `finish` returns."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault], root: str, begin: float) -> None:
        """`root`: whose coordinator is meant; `begin`: the time from which the faults count."""
        super().__init__()
        self._cluster = cluster
        self._faults = faults
        self._root = root
        self._begin = begin
        self._error: Optional[BaseException] = None

    def finish(self) -> None:
        self.join()
        if self._error:
            raise self._error

    def run(self) -> None:
        numbers = itertools.count()
        due: List[Tuple[float, int, Callable[[], Optional[Tuple[float, _End]]]]] = []
        for fault in self._faults:
            due.append((self._begin + fault.at, next(numbers), lambda fault=fault: self._make(fault)))
        heapq.heapify(due)
        try:
            while due:
                at, _, act = heapq.heappop(due)
                time.sleep(max(0.0, at - time.monotonic()))
                ends = act()
                if ends:
                    seconds, end = ends
                    heapq.heappush(due, (time.monotonic() + seconds, next(numbers), end))
        except BaseException as error:
            self._error = error

    def _make(self, fault: Fault) -> Optional[Tuple[float, _End]]:
        """Returns how to end it, and after how many seconds; None if it is not possible now."""
        if fault.kind == "etcd":
            return self._kill_leader(fault.seconds)
        node = self._node(fault.node)
        if not node.running():
            return None
        return fault.seconds, {"kill": self._kill, "pause": self._pause, "cut": self._cut}[fault.kind](node)

    def _node(self, number: int) -> Node:
        if number != COORDINATOR:
            return self._cluster.nodes[number]
        names = {node.coordinator(self._root) for node in self._cluster.nodes if node.running() and not self._paused(node)}
        return next((node for node in self._cluster.nodes if node.name in names), self._cluster.nodes[0])

    @staticmethod
    def _paused(node: Node) -> bool:
        assert node.process is not None
        with open(f"/proc/{node.process.pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"

    def _kill_leader(self, seconds: float) -> Optional[Tuple[float, _End]]:
        members = self._cluster.etcd
        if len(members.processes) < len(members.addresses):
            return None  # Another one would leave no majority.
        leader = members.leader()
        members.kill(leader)
        return seconds, lambda: members.start(leader)

    def _kill(self, node: Node) -> _End:
        node.close()
        return node.start

    def _pause(self, node: Node) -> _End:
        process = node.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)  # No-op if it was killed meanwhile.

    def _cut(self, node: Node) -> _End:
        places, number = self._cluster.places, self._cluster.nodes.index(node)
        assert isinstance(places, SeparateHosts)
        places.cut(number)
        return lambda: places.heal(number)
