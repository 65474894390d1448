"""What the memory and the disk can do, and how to leave them idle before a measurement."""

from __future__ import annotations

import functools
import mmap
import os
import pathlib
import statistics
import threading
import time
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
from ckptd._memory import native

from bench.base.pages import TRANSPARENT, Memory, describe_at

_PIECE = 4 << 20
Turn = Dict[str, float]  # Seconds of a copy, by the loop that copied.


def wait_for_idle_disk(folder: pathlib.Path, seconds: float = 30.0) -> None:
    """Syncs, and waits until the disk has been idle for 0.1 s; SystemExit if that takes more than `seconds`.

    A disk may discard a deleted file's blocks for some time after a sync, which would slow down what is measured next.
    """
    os.sync()
    device = os.stat(folder).st_dev
    place = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not (place / "inflight").exists():
        return  # Not a block device: it has no such counter.
    quiet_since = time.monotonic()
    deadline = quiet_since + seconds
    while time.monotonic() - quiet_since < 0.1:
        if any(int(count) for count in (place / "inflight").read_text().split()):
            quiet_since = time.monotonic()
        if time.monotonic() >= deadline:
            raise SystemExit(
                f"the disk of {folder} has not been idle for {seconds:.0f} s: stop the programs that use it"
            )
        time.sleep(0.005)


class BestCopy(NamedTuple):
    """The least that a copy can take on this machine."""

    loop: str
    seconds: float  # The median of this loop's copies.


def best_copy(turns: Sequence[Turn]) -> BestCopy:
    """The loop with the least median."""
    medians = {loop: statistics.median(turn[loop] for turn in turns) for loop in turns[0]}
    loop = min(medians, key=lambda name: medians[name])
    return BestCopy(loop, medians[loop])


def slowest_of(ranks: Sequence[Turn]) -> Turn:
    """One turn that several ranks made at once."""
    return {loop: max(turn[loop] for turn in ranks) for loop in ranks[0]}


class MemoryCopy:
    """Copies tensors by each of the processor's loops in turn, on the pages that a save or a restore copies on: into shared
    memory like the pool's, or out of it. All pages are faulted in already. The fastest loop is the least that can be taken.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        threads: int,
        kind: str = TRANSPARENT,
        out: bool = False,
        touched: bool = True,
    ) -> None:
        """kind: of the pool's pages; by default those that a daemon asks for, and gets where the kernel has them.
        out: copy out of the shared memory, which has the tensors' bytes, into the tensors.
        """
        self.size = sum(t.numel() * t.element_size() for t in tensors)
        self._tensors = list(tensors)
        self.memory = Memory(self.size, kind, touched=touched)
        self._loops = native.copy_loops()
        self._pieces = self._cut(threads, out=False)
        if touched:
            self._copy(len(self._loops) - 1)
        self._pieces = self._cut(threads, out)
        self._out = out

    def pages(self) -> str:
        """Which pages the copies are from and to, in words."""
        largest = max(self._tensors, key=lambda tensor: tensor.numel())
        ours, theirs = self.memory.describe(), describe_at(largest.data_ptr())
        source, target = (ours, theirs) if self._out else (theirs, ours)
        return f"from {source} to {target}, touched"

    def _cut(self, threads: int, out: bool) -> List[List[Tuple[int, int, int]]]:
        """The copies (to, from, bytes) of each thread; all threads have equally many bytes."""
        share = -(-self.size // threads)
        pieces: List[List[Tuple[int, int, int]]] = [[] for _ in range(threads)]
        done = 0
        for tensor in self._tensors:
            start, left = tensor.data_ptr(), tensor.numel() * tensor.element_size()
            while left:
                thread = done // share
                now = min(left, (thread + 1) * share - done)
                ours = self.memory.address + done
                pieces[thread].append((start, ours, now) if out else (ours, start, now))
                start, left, done = start + now, left - now, done + now
        return pieces

    def __call__(self, before_each: Callable[[], object] = lambda: None) -> Turn:
        """Copies everything once by each loop.

        Args:
            before_each: where several processes copy at once, a barrier. Without it a process with more bytes than the
                others copies alone in the end, and its last loop looks faster than a copy beside others can be.
        """
        turn = {}
        for loop, name in enumerate(self._loops):
            before_each()
            turn[name] = self._copy(loop)
        return turn

    def by(self, name: str) -> float:
        """Copies everything once by the loop of this name. Returns the seconds."""
        return self._copy(self._loops.index(name))

    def _copy(self, loop: int) -> float:
        """The seconds."""
        return _in_parallel([functools.partial(self._run, loop, work) for work in self._pieces])

    @staticmethod
    def _run(loop: int, work: List[Tuple[int, int, int]]) -> None:
        for target, source, size in work:
            native.copy_by_loop(loop, target, source, size)


def take_memory_from_host(size: int) -> None:
    """Touches `size` bytes of fresh memory and frees them. Call it right before a measurement that takes fresh memory.

    A virtual machine may give freed memory back to its host after a while, and who takes it next waits for the host, which may
    take ten times as long as everything else. What was freed just now has not gone back yet.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def copy_into_fresh_pages(source: Memory, size: int, threads: int, name: str) -> float:
    """The seconds of a plain loop that touches fresh private pages, huge ones if the kernel gives them, piece by piece, and
    copies the source's first `size` bytes there by the loop of this name.
    """
    loop = native.copy_loops().index(name)
    target = Memory(size, TRANSPARENT, shared=False, touched=False)
    work = iter(range(0, size, _PIECE))

    def run() -> None:
        for at in iter(lambda: next(work, None), None):  # The interpreter lock guards `work`.
            native.copy_by_loop(loop, target.address + at, source.address + at, min(_PIECE, size - at))

    return _in_parallel([run] * threads)


def copy_into_fresh_pool(tensors: Sequence[torch.Tensor], threads: int, kind: str, name: str) -> float:
    """The seconds to fault in shared memory as a daemon does with its pool, and to copy the tensors there by this loop."""
    copy = MemoryCopy(tensors, threads, kind, touched=False)
    start = time.perf_counter()
    copy.memory.touch(threads)
    copy.by(name)
    return time.perf_counter() - start


def _in_parallel(work: Sequence[Callable[[], object]]) -> float:
    """The seconds. The first runs in this thread."""
    others = [threading.Thread(target=each) for each in work[1:]]
    start = time.perf_counter()
    for thread in others:
        thread.start()
    work[0]()
    for thread in others:
        thread.join()
    return time.perf_counter() - start


def drop_from_page_cache(paths: Sequence[pathlib.Path]) -> None:
    """The files must be synced."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def time_durable_publish(folder: pathlib.Path) -> float:
    """Seconds to publish 4 KiB durably: create, write, fsync, rename, fsync of the directory."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        start = time.perf_counter()
        file = os.open("published.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        os.write(file, bytes(4096))
        os.fsync(file)
        os.close(file)
        os.rename("published.tmp", "published", src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
        seconds = time.perf_counter() - start
        os.unlink("published", dir_fd=directory)
        return seconds
    finally:
        os.close(directory)


def time_direct_write(folder: pathlib.Path, size: int) -> float:
    """Seconds to write a new file of `size` bytes past the page cache, one piece after the other, and to sync it.

    A file system without direct writes gets plain ones.
    """
    path = folder / f"written-{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        file = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        path.unlink(missing_ok=True)  # tmpfs makes it before it refuses.
        file = os.open(path, flags, 0o600)
    try:
        with mmap.mmap(-1, _PIECE) as piece:  # Aligned to a page.
            start = time.perf_counter()
            for _ in range(-(-size // _PIECE)):
                os.write(file, piece)
            os.ftruncate(file, size)
            os.fsync(file)
            return time.perf_counter() - start
    finally:
        os.close(file)
        path.unlink()
