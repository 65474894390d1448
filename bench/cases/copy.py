"""Every way to copy memory that this processor has, by several numbers of threads, and which one a client chooses."""

from __future__ import annotations

import statistics
from array import array
from typing import Dict, List

import torch
from ckptd._memory import native

from bench.base import limits
from bench.base.context import MIB, BenchContext
from bench.base.result import Result


def run(context: BenchContext) -> None:
    source = torch.ones(context.size // 2, dtype=torch.uint8)
    for threads in sorted({1, context.threads, 2 * context.threads}):
        copy = limits.MemoryCopy([source], threads)
        turns = [copy() for _ in range(3 if context.quick else 9)]
        for loop in turns[0]:
            rates = [copy.size / turn[loop] / 1e9 for turn in turns]
            words = f"{threads} threads, {copy.size >> 20} MiB; {min(rates):.1f}-{max(rates):.1f}"
            context.report(Result(f"copy.{loop}.{threads}", statistics.median(rates), "GB/s", words))
    for out, name in ((False, "into"), (True, "out")):
        _report_choice(context, out, name, source)


def _report_choice(context: BenchContext, out: bool, name: str, source: torch.Tensor) -> None:
    """The rate of the loop that a client chooses, of the best loop's."""
    target = torch.empty_like(source).fill_(1)
    chosen = _choose(source, target, context.threads, out)
    copy = limits.MemoryCopy([source], context.threads)
    turns: List[Dict[str, float]] = [copy() for _ in range(3 if context.quick else 9)]
    best = limits.best_copy(turns)
    ratio = best.seconds / statistics.median(turn[chosen] for turn in turns)
    words = f"the fastest is {best.loop}, {copy.size / best.seconds / 1e9:.1f} GB/s; the client chose {chosen}"
    context.report(Result(f"copy.chosen.{name}", ratio, "x", words, 0.95, at_least=True))


def _choose(source: torch.Tensor, target: torch.Tensor, threads: int, out: bool) -> str:
    """Copies as a save or a restore does, until this process has chosen."""
    segments = (array("Q", [target.data_ptr()]), array("Q", [target.nbytes]))
    pieces = [array("Q", [value]) for value in (0, source.data_ptr(), source.nbytes)]
    if out:
        native.copy_out(segments, 0, source.nbytes, native.Targets(*pieces), threads)
    else:
        native.copy(segments, 0, native.Pieces(*pieces), 0, source.nbytes, threads)
    chosen = native.fastest_copy_loop(out)
    if chosen is None:
        raise SystemExit(f"the client has copied {source.nbytes / MIB:.0f} MiB and not chosen a loop")
    return chosen
