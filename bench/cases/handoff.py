"""The time of Begin and Seal, with almost no bytes to copy between them."""

from __future__ import annotations

from typing import Sequence

from bench.base.context import MIB, SUFFIX, BenchContext
from bench.base.result import Result
from bench.cases import clients


def run(context: BenchContext) -> None:
    rounds = 50 if context.quick else 200
    with context.daemon(64 * MIB) as daemon:
        for client in context.clients:
            daemon.wait_for_pool()
            if client == "python":
                seconds = clients.run_python(context, daemon, "tiny", rounds)["calls"]
            else:
                seconds = clients.run_cpp(context, daemon, 100, rounds)["warm"]
            calls = [s * 1e3 for s in seconds]
            words = f"{len(calls)} saves of 100 bytes; {min(calls):.2f}-{max(calls):.2f} ms"
            p50, p99 = percentile(calls, 50), percentile(calls, 99)
            context.report(Result(f"save.handoff.p50_ms{SUFFIX[client]}", p50, "ms", words))
            context.report(Result(f"save.handoff.p99_ms{SUFFIX[client]}", p99, "ms", words))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` per cent of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
