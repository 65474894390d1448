"""What tools/demo and tools/bench ask of the machine: its settings, its limits, what a process costs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, TypeVar

import torch

T = TypeVar("T")
SHMEM_HUGE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
HUGE_RESERVED = pathlib.Path("/proc/sys/vm/nr_hugepages")
_memmove = ctypes.CDLL(None).memmove  # Releases the interpreter lock, as every ctypes.CDLL call does.
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove.restype = ctypes.c_void_p


def say(words: str = "") -> None:
    print(words, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` per cent of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def wait_until(condition: Callable[[], Optional[T]], what: str, timeout: float, interval: float = 0.02) -> T:
    """The first answer of `condition` that is not falsy. A SystemExit names what did not come."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {timeout:g} s in vain for {what}")
        time.sleep(interval)


# ---- settings --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def transparent_huge_pages() -> Iterator[None]:
    """Shared memory may have transparent huge pages meanwhile, where we may say so; put back at the end."""
    before = _shmem_setting()
    if before in ("always", "within_size", "advise", "force"):
        say(f"huge pages: {SHMEM_HUGE} is '{before}' already")
        yield
        return
    try:
        SHMEM_HUGE.write_text("advise")
    except OSError as error:
        say(
            f"huge pages: {SHMEM_HUGE} stays '{before}' ({error.strerror}): "
            "the daemon writes from small pages, at half the speed"
        )
        yield
        return
    say(f"huge pages: {SHMEM_HUGE} set from '{before}' to 'advise' for this run")
    try:
        yield
    finally:
        _put_back(SHMEM_HUGE, "advise", _shmem_setting(), before)


def _put_back(setting: pathlib.Path, ours: str, now: str, before: str) -> None:
    """Back to what it was, unless somebody else has changed it meanwhile."""
    if now != ours:
        say(f"huge pages: {setting} is '{now}' now, which was not us: it stays so")
        return
    setting.write_text(before)
    say(f"huge pages: {setting} put back to '{before}'")


def _shmem_setting() -> str:
    try:
        words = SHMEM_HUGE.read_text().split()
    except OSError:
        return "absent"
    return next((word[1:-1] for word in words if word.startswith("[")), "absent")


@contextlib.contextmanager
def reserved_huge_pages(size: int) -> Iterator[Optional[pathlib.Path]]:
    """Meanwhile a file system of `size` bytes of huge pages that nobody else can take; None: we get none."""
    pages = -(-size // (2 << 20))
    limit = "its buffers are ordinary memory, which is not the disk's limit"
    try:
        before = int(HUGE_RESERVED.read_text())
        HUGE_RESERVED.write_text(str(before + pages))
    except OSError as error:
        say(f"fio: no huge pages may be reserved ({error.strerror}): {limit}")
        yield None
        return
    total = HUGE_RESERVED.read_text().strip()
    try:
        with tempfile.TemporaryDirectory(prefix="huge-pages-") as folder:
            mount = [
                "mount",
                "-t",
                "hugetlbfs",
                "-o",
                f"size={pages * 2}M,min_size={pages * 2}M",
                "none",
                folder,
            ]
            mounted = subprocess.run(mount, capture_output=True, text=True)
            if mounted.returncode != 0:
                say(f"fio: no {pages} huge pages ({mounted.stderr.strip().splitlines()[0]}): {limit}")
                yield None
                return
            say(f"fio: {pages * 2} MiB of huge pages reserved for its buffers")
            try:
                yield pathlib.Path(folder)
            finally:
                subprocess.run(["umount", folder], check=True)
    finally:
        _put_back(HUGE_RESERVED, total, HUGE_RESERVED.read_text().strip(), str(before))


def require_disk(folder: pathlib.Path, free: int) -> None:
    """A SystemExit unless `folder` is on a real file system with `free` bytes left."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)], check=True, capture_output=True, text=True
    )
    if kind.stdout.strip() in ("tmpfs", "ramfs"):
        raise SystemExit(
            f"{folder} is memory ({kind.stdout.strip()}), not a disk: give another place with --dir"
        )
    left = shutil.disk_usage(folder).free
    if left < free:
        raise SystemExit(
            f"{folder} has {left / 1e9:.1f} GB free, this needs {free / 1e9:.1f}: choose another --dir"
        )


# ---- limits ----------------------------------------------------------------------------------------------


def settle(folder: pathlib.Path, seconds: float = 30.0) -> None:
    """Until the disk below has nothing left to do: a deleted file's blocks may be discarded for some time after
    the next sync, and then whatever is measured waits for that.
    """
    os.sync()
    device = os.stat(folder).st_dev
    place = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not (place / "inflight").exists():
        return  # Not a block device: nothing to see.
    quiet_since = time.monotonic()
    deadline = quiet_since + seconds
    while time.monotonic() - quiet_since < 0.1:
        if any(int(count) for count in (place / "inflight").read_text().split()):
            quiet_since = time.monotonic()
        if time.monotonic() >= deadline:
            raise SystemExit(f"the disk of {folder} has been busy for {seconds:.0f} s; stop what uses it")
        time.sleep(0.005)


class Copy:
    """One copy of some tensors' bytes into memory that is faulted in: no save can be quicker."""

    def __init__(self, tensors: Sequence[torch.Tensor], threads: int) -> None:
        self.size = sum(t.numel() * t.element_size() for t in tensors)
        target = mmap.mmap(-1, self.size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            target.madvise(mmap.MADV_HUGEPAGE)  # As fast as memory gets.
        self._kept = (list(tensors), torch.frombuffer(memoryview(target), dtype=torch.uint8))
        self._pieces = self._cut(threads)
        self()  # Faults the target in.

    def _cut(self, threads: int) -> List[List[Tuple[int, int, int]]]:
        """(to, from, bytes) for each thread, equal shares of the whole."""
        tensors, target = self._kept
        share = -(-self.size // threads)
        pieces: List[List[Tuple[int, int, int]]] = [[] for _ in range(threads)]
        done = 0
        for tensor in tensors:
            start, left = tensor.data_ptr(), tensor.numel() * tensor.element_size()
            while left:
                thread = done // share
                now = min(left, (thread + 1) * share - done)
                pieces[thread].append((target.data_ptr() + done, start, now))
                start, left, done = start + now, left - now, done + now
        return pieces

    def __call__(self) -> float:
        """Seconds for the whole."""
        others = [threading.Thread(target=self._run, args=(work,)) for work in self._pieces[1:]]
        start = time.perf_counter()
        for thread in others:
            thread.start()
        self._run(self._pieces[0])
        for thread in others:
            thread.join()
        return time.perf_counter() - start

    @staticmethod
    def _run(work: List[Tuple[int, int, int]]) -> None:
        for target, source, size in work:
            _memmove(target, source, size)


def forget(paths: Sequence[pathlib.Path]) -> None:
    """Takes files that are synced out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fsync_chain(folder: pathlib.Path) -> float:
    """Seconds to publish 4 KiB as one should: create, write, fsync, rename, fsync of the directory."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        start = time.perf_counter()
        file = os.open("chain.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        os.write(file, bytes(4096))
        os.fsync(file)
        os.close(file)
        os.rename("chain.tmp", "chain", src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
        seconds = time.perf_counter() - start
        os.unlink("chain", dir_fd=directory)
        return seconds
    finally:
        os.close(directory)


# ---- processes -------------------------------------------------------------------------------------------


def program(name: str) -> str:
    """ckptd or ckptctl: where $CKPTD_BIN says, else beside this Python, where the wheel put it."""
    configured = os.environ.get("CKPTD_BIN")
    place = pathlib.Path(configured or sys.executable).parent / name
    if not os.access(place, os.X_OK):
        raise SystemExit(
            f"no program {place}: run tools/setup" + (", or unset CKPTD_BIN" if configured else "")
        )
    return str(place)


def listener_pid(socket_path: str) -> int:
    """The process that listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(socket_path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_memory(pid: int) -> int:
    """Resident bytes of a process beside shared memory: VmRSS without RssShmem."""
    fields = dict(
        line.split(":", 1)
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return (int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0])) * 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
