"""How much memory the daemon keeps of saves that have ended."""

from __future__ import annotations

import pathlib
from typing import List

from bench.base import machine
from bench.base.context import MIB, BenchContext
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases.rank import Rank

FILES = 10_000


def run(context: BenchContext) -> None:
    saves, committed = (300, 1) if context.quick else (10_000, 3)
    with context.daemon(64 * MIB) as daemon:
        first, last = memory_of_saves(daemon, context.new_root(), saves, committed)
    words = (
        f"growth outside the pool from the first save of {FILES} files to {saves} more that are aborted and "
        f"{committed} that are committed; {last / MIB:.0f} MiB at the end"
    )
    context.report(Result("daemon.rss_of_ended_saves_mib", (last - first) / MIB, "MiB", words, 32, combine=max))


def memory_of_saves(daemon: Daemon, root: pathlib.Path, saves: int, committed: int) -> List[int]:
    """The daemon's bytes outside the pool, after one save, and after `saves` more that were aborted and `committed` more that
    were committed.
    """
    rank = Rank(daemon, root, files=FILES)
    rank.save("first", commit=True)
    measured = [machine.private_memory(daemon.pid)]
    for i in range(saves):
        rank.save(f"step_{i}", commit=False)
    for i in range(committed):
        rank.save(f"kept_{i}", commit=True)
    daemon.wait_until_idle()
    measured.append(machine.private_memory(daemon.pid))
    rank.close()
    return measured
