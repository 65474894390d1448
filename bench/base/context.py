"""What every case of tools/bench works with."""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import tempfile
from typing import Iterator, List, Optional, Sequence

from bench.base import machine
from bench.base.daemon import Daemon
from bench.base.goals import goal_of
from bench.base.result import Result

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SUFFIX = {"python": "", "cpp": ".cpp"}  # Of a figure's name, by client.


class BenchContext:
    def __init__(
        self,
        folder: pathlib.Path,
        quick: bool,
        huge: Optional[pathlib.Path],
        clients: Sequence[str],
        results: List[Result],
    ) -> None:
        """huge: a file system of huge pages for fio's buffers, if they could be reserved."""
        self.folder = folder  # On the disk that is measured.
        self.quick = quick
        self.huge = huge
        self.clients = clients
        self.size = GIB // 4 if quick else 2 * GIB
        self.threads = min(4, os.cpu_count() or 1)  # As many as the clients copy with.
        self.results = results

    def report(self, result: Result) -> None:
        """Adds a figure, with its goal out of bench/base/goals.py if it has one there."""
        goal = goal_of(result.name)
        if goal is not None:
            result.goal, result.at_least = goal
        self.results.append(result)
        machine.log(f"  {result.name} = {result.value:.4g} {result.unit}")

    @contextlib.contextmanager
    def daemon(self, pool: int, resident: bool = False, config: str = "") -> Iterator[Daemon]:
        """A daemon whose folder is outside of self.folder: a socket's path must be short."""
        with (
            tempfile.TemporaryDirectory(prefix="ckptd-bench-") as folder,
            Daemon(pathlib.Path(folder), pool, resident, config) as daemon,
        ):
            yield daemon

    def new_root(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(prefix="root", dir=self.folder))


def describe_milliseconds(seconds: Sequence[float], scale: float = 1e3) -> str:
    """Median, least and most, in milliseconds; scale 1 if the values are milliseconds already."""
    median, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{median * scale:.0f} [{least * scale:.0f}-{most * scale:.0f}] ms"


def describe_rates(rates: Sequence[float]) -> str:
    """Median, least and most of rates in bytes per second."""
    return f"{statistics.median(rates) / 1e9:.2f} [{min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f}] GB/s"
