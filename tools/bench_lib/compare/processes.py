"""What processes cost with all that they have started, from /proc."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from typing import Iterable, List, NamedTuple, Tuple

import machine


def trees(pids: Iterable[int]) -> List[int]:
    """The processes and their descendants."""
    found: List[int] = []
    for pid in pids:
        found.append(pid)
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # A thread that has ended meanwhile.
                found += trees(int(child) for child in children.read_text().split())
    return found


def cpu_of_trees(pids: Iterable[int]) -> float:
    """User and system seconds so far. The kernel's own threads, which write the page cache back, are nobody's."""
    return sum(machine.cpu_seconds(pid) for pid in trees(pids))


class Memory(NamedTuple):
    private: int  # Bytes that are one process's own: RssAnon.
    shared: int  # Shared memory, once each, of the whole machine: nobody says which of it two processes share.


def memory_of_trees(pids: Iterable[int]) -> Memory:
    private = 0
    for pid in trees(pids):
        with contextlib.suppress(OSError):  # A process that has ended meanwhile.
            private += _kilobytes(f"/proc/{pid}/status", "RssAnon")
    return Memory(private * 1024, shared_memory())


def shared_memory() -> int:
    return _kilobytes("/proc/meminfo", "Shmem") * 1024


def _kilobytes(file: str, field: str) -> int:
    for line in pathlib.Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    return 0  # A process that is about to end has none.


class MemoryWatch:
    """`with MemoryWatch(pids) as watch`: looks now and then, and remembers."""

    INTERVAL = 0.05  # Seconds. A look costs well under a millisecond: it reads counters and walks no page table.

    def __init__(self, pids: List[int]) -> None:
        self._pids = pids
        self._seen: List[Tuple[float, Memory]] = []
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
            self._seen.append((time.perf_counter(), memory_of_trees(self._pids)))

    def growth(self, start: float, end: float) -> Memory:
        """The most that was seen between two times of time.perf_counter(), each kind for itself, above the start's."""
        between = [memory for when, memory in self._seen if start <= when <= end]
        before = [memory for when, memory in self._seen if when < start][-1:] or between[:1]
        if not between:
            raise SystemExit("nobody looked at the memory between the two times")
        return Memory(
            max(memory.private for memory in between) - before[0].private,
            max(memory.shared for memory in between) - before[0].shared,
        )
