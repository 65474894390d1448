"""What a conversion of a ZeRO-1 optimizer takes, beside the disk's own copying: fio that reads one file and writes
another, at once.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

import machine
import torch

from bench_lib import fio, state
from bench_lib.result import Result

if TYPE_CHECKING:
    from bench_lib.main import Bench

RANKS, TO_RANKS = 4, 3
MIB, GIB = 1 << 20, 1 << 30
COMBINATIONS = fio.COMBINATIONS[:3]  # Twice their buffers are what is reserved.


def section(bench: "Bench") -> None:
    size = GIB // 2 if bench.quick else 4 * GIB
    machine.require_disk(bench.folder, size * 9 // 2)
    rounds = 2 if bench.quick else 4
    tag = bench.folder / "tag"
    subprocess.run([sys.executable, "-m", "bench_lib.converting", str(tag), str(size)], check=True)
    limit = Copying(bench.folder, size, bench.huge)
    runs = []
    with limit:
        for _ in range(rounds):
            limit()
            runs.append(convert(bench.folder, tag))
            limit()
    moved = runs[0][0]
    rates = [moved / seconds for moved, seconds, _ in runs]
    ours = f"{machine.median(rates) / 1e9:.2f} [{min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f}] GB/s"
    words = f"{limit.words()}; ours {ours}, {moved / 1e9:.2f} GB from dp {RANKS} to dp {TO_RANKS}, published"
    bench.report(
        Result("convert.nxd_zero.vs_copy", machine.median(rates) / limit.best(), "x", words, 0.7, at_least=True)
    )
    memory = max(memory for _, _, memory in runs) / MIB
    words = f"the most that was resident of ckptctl, whole, converting {moved / 1e9:.2f} GB"
    bench.report(Result("convert.nxd_zero.rss_mib", memory, "MiB", words, 512))
    shutil.rmtree(tag)


def convert(folder: pathlib.Path, tag: pathlib.Path) -> Tuple[int, float, int]:
    """Bytes, seconds, and the most memory of it in bytes."""
    out = folder / "converted"
    machine.settle(folder)
    machine.forget(sorted(tag.glob("**/*.pt")))
    command = [machine.program("ckptctl"), "convert", "nxd-zero", f"--input_dir={tag}", f"--output_dir={out}"]
    command += ["--convert_to_sharded", f"--dp_size={TO_RANKS}", "--output=json"]
    memory = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        while program.poll() is None:
            memory = max(memory, most_resident(program.pid))
            time.sleep(0.02)
        assert program.stdout
        said = program.stdout.read()
    if program.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with {program.returncode}")
    shutil.rmtree(out)
    answer = json.loads(said)
    return answer["optim_bytes"], answer["seconds"], memory


def most_resident(pid: int) -> int:
    """Of a program so far, in bytes. Not what wait4 says: that begins with the process that started it."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0  # It is over.


class Copying:
    """fio, reading and writing at once. Within a `with`, which has a file to read."""

    def __init__(self, folder: pathlib.Path, size: int, huge: Optional[pathlib.Path]) -> None:
        self._folder, self._size, self._huge = folder, size, huge
        self._next = 0
        self._rates: List[Tuple[float, str]] = []

    def __enter__(self) -> "Copying":
        self._fio({"write": self._folder / "fio.from"}, *COMBINATIONS[1])
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "fio.from").unlink(missing_ok=True)

    def __call__(self) -> None:
        block, depth = COMBINATIONS[self._next % len(COMBINATIONS)]
        self._next += 1
        machine.settle(self._folder)
        to = self._folder / "fio.to"
        try:
            seconds = self._fio({"read": self._folder / "fio.from", "write": to}, block, depth)
        finally:
            to.unlink(missing_ok=True)
        self._rates.append((self._size / seconds, f"{block >> 20} MiB x {depth}"))

    def best(self) -> float:
        return max(self._rates)[0]

    def words(self) -> str:
        rate, name = max(self._rates)
        pages = "huge-page buffers" if self._huge else "ordinary buffers, for want of huge pages"
        return (
            f"fio direct, one file read and a fresh fallocated one written at once, {pages}: {rate / 1e9:.2f} GB/s "
            f"({name}), best of {len(self._rates)}"
        )

    def _fio(self, jobs: Dict[str, pathlib.Path], block: int, depth: int) -> float:
        """Seconds until the slower of them is done."""
        measured = fio.run(
            [fio.job(name, name, file, self._size, block, depth, self._huge) for name, file in jobs.items()]
        )
        return max(float(job[job["jobname"]]["runtime"]) for job in measured) / 1e3


def write_tag(tag: pathlib.Path, size: int) -> None:
    """A transformer's two moments and master weights, as shards; float32, `size` bytes in all."""
    (tag / "optim").mkdir(parents=True)
    shapes = {}
    for rank in range(RANKS):
        base, masters = {}, {}
        layers = state.parameters(size // 4 // 3 // RANKS)
        for number, weight in enumerate(layers.values()):
            shapes[number] = [len(weight) * RANKS - 1, *weight.shape[1:]]
            moments = {name: state.random_tensor(list(weight.shape)) for name in ("exp_avg", "exp_avg_sq")}
            base[number] = {"step": torch.tensor(100.0), **moments}
            masters[number] = weight
        content = {"state": {}, "param_groups": [{"lr": 3e-4, "params": sorted(shapes)}], "base_state": base}
        content.update(shape_info=shapes, sharded_master_weights=masters)
        torch.save(content, tag / "optim" / f"dp_rank_{rank:02d}_tp_rank_00_pp_rank_00.pt")
    for marker in ("checkpoint", "done"):
        (tag / marker).write_text("1")
    os.sync()


if __name__ == "__main__":
    write_tag(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
