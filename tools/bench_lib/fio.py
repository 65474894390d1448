"""What the disk can do: fio's best direct write into a fresh, fallocated file, made durable at the end."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Dict, List, Optional, Sequence

import machine

# (bytes, depth). The last one's buffers are more than a processor's cache holds, as a checkpoint is: small buffers,
# written again and again, stay in the cache, from which some machines write faster than from memory.
COMBINATIONS = ((1 << 20, 32), (4 << 20, 8), (16 << 20, 4), (4 << 20, 64))
BUFFERS = max(size * depth for size, depth in COMBINATIONS)
RESERVE = BUFFERS + (32 << 20)  # Of huge pages; fio aligns and adds a little, and rounds depths up to a power of two.


def _name(block: int, depth: int) -> str:
    return f"{block >> 20} MiB x {depth}"


FROM_MEMORY = _name(*COMBINATIONS[-1])


class Fio:
    """Writes `size` bytes a time, the combinations in turn, from buffers in `huge`, where huge pages are."""

    def __init__(self, folder: pathlib.Path, size: int, huge: Optional[pathlib.Path]) -> None:
        self._folder = folder
        self._size = size
        self._huge = huge
        self._next = 0
        self.rates: Dict[str, List[float]] = {}

    def __call__(self) -> float:
        """Bytes a second of one write."""
        block, depth = COMBINATIONS[self._next % len(COMBINATIONS)]
        self._next += 1
        file = self._folder / "fio.fresh"
        machine.settle(self._folder)
        command = [
            "fio", "--name=limit", f"--filename={file}", "--rw=write", "--ioengine=io_uring", "--direct=1",
            f"--bs={block}", f"--iodepth={depth}", f"--size={self._size // block * block}",
            "--fallocate=posix", "--end_fsync=1", "--output-format=json",
        ]  # fmt: skip
        if self._huge:
            command += [f"--iomem=mmaphuge:{self._huge / 'fio'}", "--hugepage-size=2m"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        finally:
            file.unlink(missing_ok=True)
        if done.returncode != 0:
            raise SystemExit(f"fio ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
        written = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["write"]
        rate = float(written["io_bytes"] / (written["runtime"] / 1e3))
        self.rates.setdefault(_name(block, depth), []).append(rate)
        return rate


class Rates:
    """What several Fio have measured, together. only: the combination of this name."""

    def __init__(self, huge: bool, measured: Sequence[Dict[str, List[float]]], only: str = "") -> None:
        self._huge = huge
        self._rates = [
            (rate, name)
            for rates in measured
            for name, values in rates.items()
            for rate in values
            if name == only or not only
        ]

    def best(self) -> float:
        return max(self._rates)[0]

    def words(self) -> str:
        rate, name = max(self._rates)
        pages = "huge-page buffers" if self._huge else "ordinary buffers, for want of huge pages"
        each = f"{rate / 1e9:.2f} GB/s ({name}), best of {len(self._rates)}"
        return f"fio direct write, {pages}, fresh fallocated file: {each}"
