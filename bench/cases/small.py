"""The stall of a save of 10,000 small tensors, beside torch.save of the same into memory."""

from __future__ import annotations

import statistics

from bench.base.context import MIB, SUFFIX, BenchContext, describe_milliseconds
from bench.base.result import Result
from bench.cases import clients


def run(context: BenchContext) -> None:
    rounds = 5
    with context.daemon(256 * MIB) as daemon:
        daemon.wait_for_pool()
        python = clients.run_python(context, daemon, "many", rounds)
        torch_save = min(python["torch"])
        limit = f"torch.save of the same into fresh private memory: {torch_save * 1e3:.1f} ms at best"
        warm = {"python": python["warm"]}
        if "cpp" in context.clients:
            daemon.wait_for_pool()
            warm["cpp"] = clients.run_cpp(context, daemon, 10_000 * 1024, rounds, pieces=10_000)["warm"]
    for client in context.clients:
        value = statistics.median(warm[client]) / torch_save
        words = f"{limit}; ours {describe_milliseconds(warm[client])}"
        context.report(Result(f"save.stall.many_small{SUFFIX[client]}", value, "x", words, 0.6))
