"""How long DeepSpeed's save_checkpoint() takes, beside DeepSpeed alone and an engine that saves nothing."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Sequence

from bench.base import limits
from bench.base.context import BenchContext, describe_milliseconds
from bench.base.job import Job
from bench.base.result import Result

RANKS = 2
ENGINES = ("ours", "nothing", "stock")
STATE_FACTOR = 4  # Weights and, of the optimizer, weights and two moments.


def run(context: BenchContext) -> None:
    for name, count in (("large", 1), ("many", 100)):
        _report(context, name, count, _saves(context, count))


def _saves(context: BenchContext, count: int) -> List[Sequence[Dict[str, Any]]]:
    """What each rank measured in each round."""
    size = context.size // 2
    with context.daemon(size * STATE_FACTOR * 3 // 2) as daemon:
        pages = daemon.wait_for_pool()
        arguments = [f"--endpoint={daemon.endpoint}", f"--root={context.new_root()}", f"--size={size}"]
        arguments += [f"--count={count}", f"--rounds={2 if context.quick else 3}", f"--pages={pages}"]
        with Job("bench.cases.programs.deepspeed_rank", daemon.folder, "deepspeed", arguments, RANKS) as job:
            job.wait(1200)
            events = [(job.events(rank, "save"), job.events(rank, "stock")) for rank in range(RANKS)]
    return list(zip(*([{**save, **stock} for save, stock in zip(*rank)] for rank in events)))


def _report(context: BenchContext, name: str, count: int, rounds: List[Sequence[Dict[str, Any]]]) -> None:
    copy = limits.best_copy([limits.slowest_of([rank["copy"] for rank in ranks]) for ranks in rounds])
    seconds = {engine: [max(rank[engine] for rank in ranks) for ranks in rounds] for engine in ENGINES}
    ours, nothing, stock = (statistics.median(seconds[engine]) for engine in ENGINES)
    total = sum(rank["bytes"] for rank in rounds[0])
    words = (
        f"ZeRO-2 on {RANKS} ranks, {count} parameters, {total / 1e9:.2f} GB in all; a copy of a rank's bytes by {copy.loop}, "
        f"{rounds[0][0]['pages']}: {copy.seconds * 1e3:.0f} ms; save_checkpoint by an engine that saves nothing "
        f"{describe_milliseconds(seconds['nothing'])}, ours {describe_milliseconds(seconds['ours'])}"
    )
    context.report(Result(f"save.stall.deepspeed.{name}", (ours - nothing) / copy.seconds, "x", words, 1.2))
    words = f"DeepSpeed alone, without a sync: {describe_milliseconds(seconds['stock'])}"
    value = (stock - nothing) / copy.seconds
    context.report(Result(f"save.stall.deepspeed.{name}.stock", value, "x", words))
