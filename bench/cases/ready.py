"""How long a daemon that knows 1,000 checkpoints takes to start."""

from __future__ import annotations

import statistics
import time
from typing import Optional

from bench.base import machine
from bench.base.context import MIB, BenchContext, describe_milliseconds
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases import clients


def run(context: BenchContext) -> None:
    count = 100 if context.quick else 1000
    with context.daemon(256 * MIB) as daemon:
        daemon.wait_for_pool()
        clients.run_python(context, daemon, "fill", count)
        seconds = []
        for _ in range(3):
            daemon.stop()
            start = time.perf_counter()
            daemon.start()
            machine.wait_until(
                lambda: _checkpoint_count(daemon) == count,
                f"the daemon to know {count} checkpoints",
                60,
                0.001,
            )
            seconds.append(time.perf_counter() - start)
    words = f"from exec until it answers for a root of {count} committed checkpoints"
    words = f"{words}; ours {describe_milliseconds(seconds)}"
    context.report(Result("daemon.ready_s", statistics.median(seconds), "s", words))


def _checkpoint_count(daemon: Daemon) -> Optional[int]:
    runs = daemon.status().runs
    return runs[0].checkpoint_count if runs else None
