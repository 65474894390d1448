"""The disk's limit: fio's best direct write of a fresh, fallocated file, synced at the end, or its best direct read."""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from bench.base import limits

# (block size, depth). The buffers of the last are larger than a processor's cache, as a checkpoint is. Small buffers
# that are written again and again stay in the cache, from which some machines write faster than from memory.
COMBINATIONS = ((1 << 20, 32), (4 << 20, 8), (16 << 20, 4), (4 << 20, 64))
BUFFERS = max(size * depth for size, depth in COMBINATIONS)
HUGE_PAGE_BYTES = BUFFERS + (
    32 << 20
)  # To reserve: fio adds a little, and rounds depths up to a power of two.


def combination(block: int, depth: int) -> str:
    return f"{block >> 20} MiB x {depth}"


FROM_MEMORY = combination(*COMBINATIONS[-1])


class Fio:
    """Each call writes or reads `size` bytes; the calls take the combinations in turn. Reads need a `with` block, which makes
    the file. huge: the file system of huge pages for the buffers; without it they are on pages of 4 KiB.
    """

    def __init__(
        self, folder: pathlib.Path, size: int, huge: Optional[pathlib.Path], direction: str = "write"
    ) -> None:
        self._folder = folder
        self._size = size
        self._huge = huge
        self._direction = direction
        self._next = 0
        self.rates: Dict[str, List[float]] = {}

    def __enter__(self) -> "Fio":
        self._run("write", *COMBINATIONS[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._file().unlink(missing_ok=True)

    def __call__(self) -> float:
        """Bytes per second of one write or read."""
        block, depth = COMBINATIONS[self._next % len(COMBINATIONS)]
        self._next += 1
        limits.wait_for_idle_disk(self._folder)
        try:
            rate = self._run(self._direction, block, depth)
        finally:
            if self._direction == "write":
                self._file().unlink(missing_ok=True)
        self.rates.setdefault(combination(block, depth), []).append(rate)
        return rate

    def _file(self) -> pathlib.Path:
        return self._folder / f"fio.{self._direction}"

    def _run(self, direction: str, block: int, depth: int) -> float:
        moved = run([job("limit", direction, self._file(), self._size, block, depth, self._huge)])[0][
            direction
        ]
        return float(moved["io_bytes"] / (moved["runtime"] / 1e3))


def job(
    name: str,
    direction: str,
    file: pathlib.Path,
    size: int,
    block: int,
    depth: int,
    huge: Optional[pathlib.Path],
) -> List[str]:
    """The options of a job that reads a file, or writes a fresh, fallocated file and syncs it."""
    options = [
        f"--name={name}", f"--filename={file}", f"--rw={direction}", "--ioengine=io_uring", "--direct=1",
        f"--bs={block}", f"--iodepth={depth}", f"--size={size // block * block}",
    ]  # fmt: skip
    if direction == "write":
        options += ["--fallocate=posix", "--end_fsync=1"]
    if not huge:
        options.append("--iomem=mmapshared")  # Pages of 4 KiB, shared as the pool's are.
    else:
        options += [f"--iomem=mmaphuge:{huge / name}", "--hugepage-size=2m"]
    return options


def run(jobs: List[List[str]]) -> List[Dict[str, Any]]:
    """Runs the jobs concurrently. Returns what fio reports of each."""
    command = ["fio", "--output-format=json", *(option for options in jobs for option in options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"fio ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return list(json.loads(done.stdout[done.stdout.index("{") :])["jobs"])


class Buffers(NamedTuple):
    """The memory of fio's buffers. huge: a file system whose pages have 2 MiB; without it they have 4 KiB."""

    huge: Optional[pathlib.Path]
    words: str


class Rates:
    """The rates of several Fio together. pages: those of its buffers, in words. only: the combination with this name."""

    def __init__(self, pages: str, measured: Sequence[Dict[str, List[float]]], only: str = "") -> None:
        self._pages = pages
        self._rates: Dict[str, List[float]] = {}
        for rates in measured:
            for name, values in rates.items():
                if name == only or not only:
                    self._rates.setdefault(name, []).extend(values)

    def best(self) -> float:
        """The median of the combination whose median is the highest: ours is a median, too."""
        return self._best()[0]

    def _best(self) -> Tuple[float, str]:
        return max((statistics.median(values), name) for name, values in self._rates.items())

    def description(self, what: str = "write of a fresh, fallocated file") -> str:
        """what: the direct I/O that was measured."""
        rate, name = self._best()
        values = self._rates[name]
        most = max(value for each in self._rates.values() for value in each)
        each = f"{rate / 1e9:.2f} GB/s ({name}, median of {len(values)}; the most of any: {most / 1e9:.2f})"
        return f"fio: direct {what}, {self._pages}: {each}"
