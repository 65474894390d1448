"""Rounds in which the contenders take turns, each in a job of its own, with fio between them."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import shutil
import tempfile
from typing import Iterator, List, Optional, Tuple

from bench.base import machine
from bench.base.daemon import Daemon
from bench.base.fio import Buffers, Fio
from bench.compare.figures import Comparison, Figures
from bench.compare.processes import MemoryWatch, shared_memory
from bench.compare.rank import Plan
from bench.compare.rank_processes import RankProcesses
from bench.compare.setup import Setup
from bench.compare.workloads import WORKLOADS
from bench.contenders import catalog

SIZES = {"gpt": 400_000_000, "llama": 1_800_000_000, "many": 40_000_000}  # Bytes of a rank's part, rounded up.
QUICK_SIZE = 50_000_000
# What a rank needs to send 10,000 tensors in shared memory to another process.
DESCRIPTORS_OF_MANY = 25_000


def _can_run(contender: str, workload: str) -> bool:
    """Raises this process's limit on open files, which its ranks inherit, where the contender needs that."""
    if workload != "many" or contender != catalog.DCP_PROCESS:
        return True
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < DESCRIPTORS_OF_MANY:
        machine.log(
            f"  {workload}: without {contender}: it needs {DESCRIPTORS_OF_MANY} open files, and the limit is {most}"
        )
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return True


class Round:
    """All contenders once, for one workload."""

    def __init__(
        self, workload: str, setup: Setup, folder: pathlib.Path, quick: bool, huge: Optional[pathlib.Path]
    ) -> None:
        self._contenders = tuple(name for name in setup.contenders if _can_run(name, workload))
        self._workload = workload
        self._ranks = setup.ranks
        self._folder = folder
        self._quick = quick
        self._size = setup.ranks * (QUICK_SIZE if quick else SIZES[workload])
        self._pool = int(self._size * setup.pool_states)
        self._figures = {name: Figures() for name in self._contenders}
        self._fio = Fio(folder, self._size, huge)

    def run(self, number: int, pages: str) -> Comparison:
        """number: of the round, from 1. pages: of fio's buffers, in words."""
        # Each round begins with another contender, so that delayed work of the disk affects all alike.
        first = (number - 1) * (len(self._contenders) // 2) % len(self._contenders)
        for name in self._contenders[first:] + self._contenders[:first]:
            machine.log(f"  {self._workload}, round {number}: {name}")
            self._fio()
            self._job(name)
        return Comparison(self._workload, self._ranks, self._figures, self._fio.rates, pages)

    def _job(self, name: str) -> None:
        before = shared_memory()
        folder = self._folder / "compared"
        folder.mkdir()
        with self._daemon(name) as (endpoint, daemons):
            pool = shared_memory() - before if daemons else 0
            plan = Plan(
                contender=name,
                workload=self._workload,
                ranks=self._ranks,
                quick=self._quick,
                folder=folder,
                endpoint=endpoint,
                daemon=daemons[0] if daemons else 0,
                warm=1 if self._quick else 3,
                alone=1 if self._quick else 2,
            )
            with RankProcesses(plan) as ranks, MemoryWatch(ranks.pids() + daemons) as watch:
                results = ranks.results(timeout=900)
        grown = watch.growth(min(rank["ready"] for rank in results), min(rank["saved"] for rank in results))
        self._figures[name].add(results, grown.private, pool + grown.shared)
        shutil.rmtree(folder)

    @contextlib.contextmanager
    def _daemon(self, name: str) -> Iterator[Tuple[str, List[int]]]:
        """Runs a daemon for ckptd's turn only: in other turns its pool would take memory from the contender."""
        if name not in catalog.USES_DAEMON:
            yield "", []
            return
        with (
            tempfile.TemporaryDirectory(prefix="ckptd-bench-") as place,
            Daemon(pathlib.Path(place), self._pool) as daemon,
        ):
            daemon.wait_for_pool()
            yield daemon.endpoint, [daemon.pid]


def compare(
    workloads: List[str], setup: Setup, folder: pathlib.Path, quick: bool, buffers: Buffers, number: int
) -> List[Comparison]:
    """One round, whose number counts from 1."""
    chosen = [name for name in WORKLOADS if name in workloads]
    return [Round(name, setup, folder, quick, buffers.huge).run(number, buffers.words) for name in chosen]
