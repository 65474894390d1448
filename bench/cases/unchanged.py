"""What a save writes of a model of which one percent is trained, if it shares the files that have not changed."""

from __future__ import annotations

import statistics
import time
from typing import Tuple

import numpy as np

import ckptd
from bench.base import limits, machine
from bench.base.context import BenchContext
from bench.base.daemon import Daemon
from bench.base.result import Result

SAVES = 3


def run(context: BenchContext) -> None:
    trained = context.size // 100
    frozen = np.random.default_rng(1).bytes(context.size - trained)
    root = context.new_root()
    with context.daemon(context.size * 5 // 2) as daemon:
        daemon.wait_for_pool()
        with ckptd.connect(daemon.endpoint) as client:
            run = client.run(root, share_unchanged=True)
            whole = _save(daemon, run, frozen, trained, 0)
            limits.wait_for_idle_disk(root)
            shared = [_save(daemon, run, frozen, trained, step) for step in range(1, 1 + SAVES)]
    words = f"bytes that the daemon writes, of a save of {context.size / 1e9:.2f} GB of which 1 % has changed"
    worst = max(written for written, _ in shared) / context.size
    words = f"{words}; worst of {SAVES}, the first save {whole[0] / context.size:.2f}"
    context.report(Result("unchanged.written", worst, "x", words))
    seconds = statistics.median(seconds for _, seconds in shared)
    words = f"the first save, durable after {whole[1]:.2f} s; ours {seconds:.2f} s, which reads what has not changed"
    context.report(Result("unchanged.durable", seconds / whole[1], "x", words))


def _save(daemon: Daemon, run: ckptd.Run, frozen: bytes, trained: int, step: int) -> Tuple[int, float]:
    """Returns the bytes that the daemon has written, and the seconds until the checkpoint was committed."""
    files = {"frozen.bin": frozen, "adapter.bin": bytes([step]) * trained}
    before, start = _written(daemon), time.perf_counter()
    run.save(f"step_{step}", files=files).wait("committed", 600)
    return _written(daemon) - before, time.perf_counter() - start


def _written(daemon: Daemon) -> int:
    return machine.written_bytes(daemon.pid)
