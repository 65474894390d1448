"""Every way to copy memory that this processor has, by several numbers of threads and on each kind of pages, and which one a
client chooses.
"""

from __future__ import annotations

import statistics
from array import array
from typing import Dict, List

import torch
from ckptd._memory import native

from bench.base import limits
from bench.base.context import MIB, BenchContext
from bench.base.pages import PLAIN, TRANSPARENT
from bench.base.result import Result

TURNS = 3  # In a round.


def run(context: BenchContext) -> None:
    source = torch.ones(context.size // 2, dtype=torch.uint8)
    for kind, name in ((PLAIN, "4k"), (TRANSPARENT, "2m")):
        for threads in sorted({1, context.threads, 2 * context.threads}):
            _report_loops(context, limits.MemoryCopy([source], threads, kind), f"{threads}.{name}", threads)
    for out, name in ((False, "into"), (True, "out")):
        _report_choice(context, out, name, source)


def _report_loops(context: BenchContext, copy: limits.MemoryCopy, suffix: str, threads: int) -> None:
    turns = [copy() for _ in range(TURNS)]
    for loop in turns[0]:
        rates = [copy.size / turn[loop] / 1e9 for turn in turns]
        words = f"{threads} threads, {copy.size >> 20} MiB {copy.pages()}; {min(rates):.1f}-{max(rates):.1f}"
        context.report(Result(f"copy.{loop}.{suffix}", statistics.median(rates), "GB/s", words))


def _report_choice(context: BenchContext, out: bool, name: str, source: torch.Tensor) -> None:
    """The rate of the loop that a client chooses, of the best loop's, on the same pages."""
    copy = limits.MemoryCopy([source], context.threads, TRANSPARENT, out)
    chosen = _choose(copy, source, context.threads, out)
    turns: List[Dict[str, float]] = [copy() for _ in range(TURNS)]
    best = limits.best_copy(turns)
    ratio = best.seconds / statistics.median(turn[chosen] for turn in turns)
    words = f"the fastest is {best.loop}, {copy.size / best.seconds / 1e9:.1f} GB/s {copy.pages()}; the client chose {chosen}"
    context.report(Result(f"copy.chosen.{name}", ratio, "x", words, 0.95, at_least=True))


def _choose(copy: limits.MemoryCopy, tensor: torch.Tensor, threads: int, out: bool) -> str:
    """Copies as a save or a restore does, between the same memory as `copy`, until this process has chosen."""
    segments = (array("Q", [copy.memory.address]), array("Q", [tensor.nbytes]))
    pieces = [array("Q", [value]) for value in (0, tensor.data_ptr(), tensor.nbytes)]
    if out:
        native.copy_out(segments, 0, tensor.nbytes, native.Targets(*pieces), threads)
    else:
        native.copy(segments, 0, native.Pieces(*pieces), 0, tensor.nbytes, threads)
    chosen = native.fastest_copy_loop(out)
    if chosen is None:
        raise SystemExit(f"the client has copied {tensor.nbytes / MIB:.0f} MiB and not chosen a loop")
    return chosen
