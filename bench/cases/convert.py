"""How long conversions of checkpoints take. Their limit is fio, reading one file and writing another concurrently."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Dict, List, Sequence, Tuple

from bench.base import fio, limits, machine, pages
from bench.base.context import GIB, MIB, BenchContext, describe_rates
from bench.base.result import Result
from bench.cases.programs import nxd_checkpoint, zero_checkpoint

TO_RANKS = 3
COMBINATIONS = fio.COMBINATIONS[:3]  # The reserved huge pages have room for two of their buffers.


@dataclasses.dataclass
class Conversion:
    """A command of `ckptctl convert`. It writes about as many bytes as the input has."""

    name: str  # Of the figures.
    words: str
    writer: str  # The module that writes the input.
    states: Sequence[str]  # More arguments of the writer.
    bytes_key: str  # Of the answer.
    options: Sequence[str]  # TAG and OUT stand for the paths.

    def command(self, tag: pathlib.Path, out: pathlib.Path) -> List[str]:
        options = [option.replace("TAG", str(tag)).replace("OUT", str(out)) for option in self.options]
        return [machine.program("ckptctl"), "convert", *options, "--output=json"]


CONVERSIONS = [
    Conversion(
        "nxd_zero",
        f"from dp {nxd_checkpoint.RANKS} to dp {TO_RANKS}",
        "nxd_checkpoint",
        [],
        "optim_bytes",
        ["nxd-zero", "--input_dir=TAG", "--output_dir=OUT", "--convert_to_sharded", f"--dp_size={TO_RANKS}"],
    ),
    Conversion(
        "zero_to_fp32",
        f"weights of stage 3 on {zero_checkpoint.RANKS} ranks, as safetensors",
        "zero_checkpoint",
        [],
        "bytes",
        ["zero-to-fp32", "TAG", "OUT", "--safe_serialization"],
    ),
    Conversion(
        "universal",
        f"stage 3 on {zero_checkpoint.RANKS} ranks",
        "zero_checkpoint",
        ["exp_avg", "exp_avg_sq"],
        "bytes",
        ["ds-to-universal", "--input_folder=TAG", "--output_folder=OUT"],
    ),
]


def run(context: BenchContext) -> None:
    size = GIB // 2 if context.quick else 4 * GIB
    machine.require_disk(context.folder, size * 9 // 2)
    for conversion in CONVERSIONS:
        measure(context, conversion, size)


def measure(context: BenchContext, conversion: Conversion, size: int) -> None:
    tag = context.folder / "tag"
    writer = f"bench.cases.programs.{conversion.writer}"
    subprocess.run([sys.executable, "-m", writer, str(tag), str(size), *conversion.states], check=True)
    runs = []
    with context.fio_buffers(pages.private_kind()) as buffers, FioCopy(context.folder, size, buffers) as limit:
        for _ in range(2):
            limit()
            runs.append(convert(context.folder, tag, conversion))
            limit()
    moved = runs[0][0]
    rates = [moved / seconds for moved, seconds, _ in runs]
    best = limit.rates()
    ratio = statistics.median(rates) / best.best()
    both = "read of one file and, concurrently, write of a fresh, fallocated one"
    words = f"{best.description(both)}; ours {describe_rates(rates)}, {moved / 1e9:.2f} GB {conversion.words}, published"
    context.report(Result(f"convert.{conversion.name}.vs_copy", ratio, "x", words, 0.7, at_least=True))
    memory = max(memory for _, _, memory in runs) / MIB
    words = f"the highest VmHWM of ckptctl, converting {moved / 1e9:.2f} GB"
    context.report(Result(f"convert.{conversion.name}.rss_mib", memory, "MiB", words, 512, combine=max))
    shutil.rmtree(tag)


def convert(folder: pathlib.Path, tag: pathlib.Path, conversion: Conversion) -> Tuple[int, float, int]:
    """Runs ckptctl. Returns the bytes converted, the seconds, and the most resident memory in bytes."""
    out = folder / "converted"
    limits.wait_for_idle_disk(folder)
    limits.drop_from_page_cache(sorted(tag.glob("**/*.pt")))
    command = conversion.command(tag, out)
    memory = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        while program.poll() is None:
            memory = max(memory, most_resident(program.pid))
            time.sleep(0.02)
        assert program.stdout
        output = program.stdout.read()
    if program.returncode != 0:
        raise SystemExit(f"'{' '.join(command)}' ended with status {program.returncode}")
    shutil.rmtree(out)
    answer = json.loads(output)
    return answer[conversion.bytes_key], answer["seconds"], memory


def most_resident(pid: int) -> int:
    """A process's peak in bytes. wait4 cannot tell: its figure includes the parent's memory at the fork."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0  # The process has ended.


class FioCopy:
    """Each call has fio read one file and write another concurrently. Used in a `with` block, which makes the file to read."""

    def __init__(self, folder: pathlib.Path, size: int, buffers: fio.Buffers) -> None:
        self._folder, self._size, self._buffers = folder, size, buffers
        self._next = 0
        self._rates: Dict[str, List[float]] = {}

    def __enter__(self) -> "FioCopy":
        self._fio({"write": self._folder / "fio.from"}, *COMBINATIONS[1])
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "fio.from").unlink(missing_ok=True)

    def __call__(self) -> None:
        block, depth = COMBINATIONS[self._next % len(COMBINATIONS)]
        self._next += 1
        limits.wait_for_idle_disk(self._folder)
        to = self._folder / "fio.to"
        try:
            seconds = self._fio({"read": self._folder / "fio.from", "write": to}, block, depth)
        finally:
            to.unlink(missing_ok=True)
        self._rates.setdefault(fio.combination(block, depth), []).append(self._size / seconds)

    def rates(self) -> fio.Rates:
        return fio.Rates(self._buffers.words, [self._rates])

    def _fio(self, jobs: Dict[str, pathlib.Path], block: int, depth: int) -> float:
        """Seconds until the slowest job is done."""
        measured = fio.run(
            [fio.job(name, name, file, self._size, block, depth, self._buffers.huge) for name, file in jobs.items()]
        )
        return max(float(job[job["jobname"]]["runtime"]) for job in measured) / 1e3
