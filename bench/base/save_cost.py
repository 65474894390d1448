"""The cost of a save to the training steps that run at the same time, on every rank."""

from __future__ import annotations

import concurrent.futures
import statistics
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist

Step = Callable[[], float]  # Runs a step and returns its seconds.


def measure(
    step: Step,
    quiet_steps: int,
    save: Callable[[], "concurrent.futures.Future[Any]"],
    make_durable: Callable[[], None] = lambda: None,
) -> Dict[str, Any]:
    """Measures one save while every rank computes. Returns seconds, from the call of `save` on this rank:

    stall    until the call returns
    done     until its future is done: the library reports the end
    durable  until `make_durable`, which a thread calls then, returns
    quiet    of each step before the save
    during   of each step until the save is durable on every rank
    """
    quiet = [step() for _ in range(quiet_steps)]
    dist.barrier()
    start = time.perf_counter()
    future = save()
    stall = time.perf_counter() - start

    def finish() -> Tuple[float, float]:
        future.result()  # Raises the save's error.
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


def lost_seconds(save: Dict[str, Any], quiet: Sequence[float]) -> float:
    """Training time that a measured save cost: its stall, and how much longer the steps took than quiet ones."""
    usual = statistics.median(quiet)
    return float(save["stall"] + sum(seconds - usual for seconds in save["during"]))
