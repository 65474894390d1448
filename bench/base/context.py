"""What every case of tools/bench works with."""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import tempfile
from typing import Dict, Iterator, List, Optional, Sequence

from bench.base import fio, settings
from bench.base.daemon import Daemon
from bench.base.goals import goal_of
from bench.base.leftovers import Leftovers
from bench.base.pages import PLAIN
from bench.base.result import Result

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SUFFIX = {"python": "", "cpp": ".cpp"}  # Of a figure's name, by client.


class BenchContext:
    """Of one round of a case."""

    def __init__(
        self,
        folder: pathlib.Path,
        quick: bool,
        clients: Sequence[str],
        results: List[Result],
        leftovers: Optional[Leftovers] = None,
        number: int = 1,
    ) -> None:
        """leftovers: of the run; without it there are no huge pages for fio's buffers. number: of the round, from 1."""
        self.folder = folder  # On the disk that is measured.
        self.quick = quick
        self.clients = clients
        self.number = number
        self.size = GIB // 4 if quick else 2 * GIB
        self.threads = min(4, os.cpu_count() or 1)  # As many as the clients copy with.
        self.results = results
        self._leftovers = leftovers

    def report(self, result: Result) -> None:
        """Adds a figure, with its goal out of bench/base/goals.py if it has one there."""
        goal = goal_of(result.name)
        if goal is not None:
            result.goal, result.at_least = goal
        self.results.append(result)

    @contextlib.contextmanager
    def daemon(
        self, pool: int, resident: bool = False, config: str = "", environment: Optional[Dict[str, str]] = None
    ) -> Iterator[Daemon]:
        """A daemon whose folder is outside of self.folder: a socket's path must be short."""
        with (
            tempfile.TemporaryDirectory(prefix="ckptd-bench-") as folder,
            Daemon(pathlib.Path(folder), pool, resident, config, environment) as daemon,
        ):
            yield daemon

    @contextlib.contextmanager
    def fio_buffers(self, pages: str) -> Iterator[fio.Buffers]:
        """Buffers for fio on pages like those of ckptd's own buffers.

        Args:
            pages: their kind, as bench/base/pages.py names it.
        """
        if pages == PLAIN or self._leftovers is None:
            yield fio.Buffers(None, "buffers on pages of 4 KiB" + (", as ours" if pages == PLAIN else ", ours 2 MiB"))
            return
        with settings.reserved_huge_pages(fio.HUGE_PAGE_BYTES, self._leftovers) as reserved:
            missing = f"buffers on pages of 4 KiB, ours 2 MiB ({reserved.why})"
            yield fio.Buffers(reserved.folder, "buffers on pages of 2 MiB, as ours" if reserved.folder else missing)

    def new_root(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(prefix="root", dir=self.folder))


def describe_milliseconds(seconds: Sequence[float], scale: float = 1e3) -> str:
    """Median, least and most, in milliseconds; scale 1 if the values are milliseconds already."""
    median, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{median * scale:.0f} [{least * scale:.0f}-{most * scale:.0f}] ms"


def describe_rates(rates: Sequence[float]) -> str:
    """Median, least and most of rates in bytes per second."""
    return f"{statistics.median(rates) / 1e9:.2f} [{min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f}] GB/s"
