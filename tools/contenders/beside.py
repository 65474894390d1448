"""What a save costs the steps beside it, on every rank."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import machine
import torch
import torch.distributed as dist

Step = Callable[[], float]  # Its seconds.


def measure(
    step: Step,
    quiet_steps: int,
    save: Callable[[], "concurrent.futures.Future[Any]"],
    make_durable: Callable[[], None] = lambda: None,
) -> Dict[str, Any]:
    """Seconds of one save while every rank computes, from the call of this rank:

    stall    until it returns
    done     until its future, which is the library's word, is done
    durable  until `make_durable`, which follows in a thread, has returned, too
    quiet    of each of the steps before
    during   of each of those until all is durable on every rank
    """
    quiet = [step() for _ in range(quiet_steps)]
    dist.barrier()
    start = time.perf_counter()
    future = save()
    stall = time.perf_counter() - start

    def finish() -> Tuple[float, float]:
        future.result()  # Raises what went wrong.
        done = time.perf_counter()
        make_durable()
        return done - start, time.perf_counter() - start

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        ends = thread.submit(finish)
        during: List[float] = []
        everywhere = torch.zeros(1)
        while not everywhere.item():
            during.append(step())
            everywhere.fill_(1.0 if ends.done() else 0.0)
            dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
        done, durable = ends.result()
    return {"stall": stall, "done": done, "durable": durable, "quiet": quiet, "during": during}


def lost(save: Dict[str, Any], quiet: Sequence[float]) -> float:
    """Seconds of training that a measured save has cost: its stall, and what the steps took longer than quiet ones."""
    usual = machine.median(quiet)
    return float(save["stall"] + sum(seconds - usual for seconds in save["during"]))
