"""CPU time and memory of processes and their descendants, from /proc."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from typing import Iterable, List, NamedTuple, Tuple

from bench.base import machine


def trees(pids: Iterable[int]) -> List[int]:
    """The processes and their descendants."""
    found: List[int] = []
    for pid in pids:
        found.append(pid)
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # The thread has ended meanwhile.
                found += trees(int(child) for child in children.read_text().split())
    return found


def cpu_of_trees(pids: Iterable[int]) -> float:
    """User and system seconds. Kernel threads that write back the page cache are not counted: they belong to no process."""
    return sum(machine.cpu_seconds(pid) for pid in trees(pids))


class Memory(NamedTuple):
    private: int  # Bytes of the processes' own memory: RssAnon.
    shared: int  # Bytes of shared memory of the whole machine: /proc does not tell which of it two processes share.


def memory_of_trees(pids: Iterable[int]) -> Memory:
    private = 0
    for pid in trees(pids):
        with contextlib.suppress(OSError):  # The process has ended meanwhile.
            private += _kilobytes(f"/proc/{pid}/status", "RssAnon")
    return Memory(private * 1024, shared_memory())


def shared_memory() -> int:
    return _kilobytes("/proc/meminfo", "Shmem") * 1024


def _kilobytes(file: str, field: str) -> int:
    for line in pathlib.Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return 0  # A process that is about to end has no such field.


class MemoryWatch:
    """Samples the memory of processes within a `with` block."""

    INTERVAL = (
        0.05  # Seconds. A sample takes well under a millisecond: it reads counters and walks no page table.
    )

    def __init__(self, pids: List[int]) -> None:
        self._pids = pids
        self._samples: List[Tuple[float, Memory]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self.INTERVAL):
            self._samples.append((time.perf_counter(), memory_of_trees(self._pids)))

    def growth(self, start: float, end: float) -> Memory:
        """The maximum of each kind between two times of time.perf_counter(), minus its value at the start."""
        between = [memory for when, memory in self._samples if start <= when <= end]
        before = [memory for when, memory in self._samples if when < start][-1:] or between[:1]
        if not between:
            raise SystemExit("no sample of the memory was taken between the two times")
        return Memory(
            max(memory.private for memory in between) - before[0].private,
            max(memory.shared for memory in between) - before[0].shared,
        )
