"""Uploads and fetches beside those of the fastest public client, and what an upload costs training steps and saves.

The bucket is a server in this machine's memory (object_server.py) that costs less CPU than its clients: moto, which the
tests use, would be what is measured. Each figure says what the server has cost.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import statistics
import time
from typing import Dict, Iterator, List, Sequence, Tuple

import ckptd

from bench.base import limits, requirements
from bench.base.context import BenchContext, describe_milliseconds, describe_rates
from bench.base.daemon import Daemon
from bench.base.gpt_steps import small_gpt_steps
from bench.base.result import Result
from bench.base.training_state import training_state
from bench.cases.bucket import transfers
from bench.cases.bucket.server import URL, Server
from bench.cases.bucket.transfers import CLIENTS, SECONDS, Transfer

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
WORDS = {"upload": "sent", "fetch": "fetched, and durable"}
OURS = {
    ("ckptctl", "upload"): "bucket.upload",
    ("daemon", "upload"): "bucket.upload.daemon",
    ("ckptctl", "fetch"): "bucket.fetch",
    ("daemon", "fetch"): "bucket.fetch.daemon",
}
QUIET_STEPS = 16  # Around each upload.


def run(context: BenchContext) -> None:
    requirements.install("bucket", REQUIREMENTS)
    size = context.size // 4
    with (
        Server() as server,
        _daemon(context, server, size * 2) as daemon,
        ckptd.connect(daemon.endpoint) as client,
    ):
        daemon.wait_for_pool()
        report_transfers(
            context, size, transfers.measure(context, server, daemon, client, size, _turns(context))
        )
    with (
        Server(niceness=19) as server,
        _daemon(context, server, size * 3) as daemon,
        ckptd.connect(daemon.endpoint) as client,
    ):
        daemon.wait_for_pool()
        _report_steps(context, client, size)
        _report_stalls(context, client, size)


def _turns(context: BenchContext) -> int:
    return 2 if context.quick else 4


@contextlib.contextmanager
def _daemon(context: BenchContext, server: Server, pool: int) -> Iterator[Daemon]:
    allowed = f'upload {{ allowed_prefixes: "{URL}" }}'
    with context.daemon(pool, config=allowed, environment=server.environment) as daemon:
        yield daemon


# ---- to the bucket and back


def report_transfers(
    context: BenchContext, size: int, measured: Dict[Tuple[str, str], List[Transfer]]
) -> None:
    """Reports rates as ratios to the rate of the faster one of the other clients, and CPU."""
    for (way, what), name in OURS.items():
        ours = measured[way, what]
        best = min(CLIENTS, key=lambda client: _median(measured[client, what], "seconds"))
        value = _median(measured[best, what], "seconds") / _median(ours, "seconds")
        others = "; ".join(
            f"{words} {_rates(measured[client, what], size)}" for client, words in CLIENTS.items()
        )
        words = f"{size / 1e9:.2f} GB {WORDS[what]}, {len(ours)} turns: {others}; ours {_rates(ours, size)}"
        words += f"; the server {_per_gb(ours, 'server', size):.2f} s of CPU per GB, for {CLIENTS[best]} "
        words += f"{_per_gb(measured[best, what], 'server', size):.2f}"
        context.report(Result(f"{name}.vs_client", value, "x", words))
        others = "; ".join(
            f"{words} {_per_gb(measured[client, what], 'cpu', size):.2f}" for client, words in CLIENTS.items()
        )
        context.report(Result(f"{name}.cpu_s_per_gb", _per_gb(ours, "cpu", size), "s/GB", f"{others}"))


def _median(turns: Sequence[Transfer], field: str) -> float:
    return statistics.median(getattr(turn, field) for turn in turns)


def _per_gb(turns: Sequence[Transfer], field: str, size: int) -> float:
    return _median(turns, field) / size * 1e9


def _rates(turns: Sequence[Transfer], size: int) -> str:
    return describe_rates([size / turn.seconds for turn in turns])


# ---- beside an upload


def _report_steps(context: BenchContext, client: ckptd.Client, size: int) -> None:
    """Steps during an upload of the daemon, each upload between quiet steps of its own."""
    step, state = small_gpt_steps(), training_state(size)
    ratios: List[float] = []
    quiet: List[float] = []
    during: List[float] = []
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        for turn in range(_turns(context)):
            run = client.run(context.new_root(), upload=ckptd.Upload(f"{URL}/steps{turn}"))
            before = [step() for _ in range(QUIET_STEPS // 2)]
            save = run.save("step_1", files=state)
            save.wait("committed", timeout=SECONDS)
            uploaded = thread.submit(save.wait, "uploaded", SECONDS)
            beside: List[float] = []
            while not uploaded.done():
                beside.append(step())
            uploaded.result()
            beside = beside[:-1]  # The last one ends after the upload.
            if not beside:
                raise SystemExit("no step ended during the upload, so there is nothing to measure")
            limits.wait_for_idle_disk(context.folder)
            before += [step() for _ in range(QUIET_STEPS // 2)]
            ratios.append(statistics.median(beside) / statistics.median(before))
            quiet += before
            during += beside
    words = f"{len(quiet)} steps without an upload {describe_milliseconds(quiet)}, {len(during)} beside one "
    words += f"{describe_milliseconds(during)}; uploads of {size / 1e9:.2f} GB, ratios {min(ratios):.3f} to {max(ratios):.3f}; 1 rank"
    context.report(Result("bucket.step_inflation", statistics.median(ratios), "x", words))


def _report_stalls(context: BenchContext, client: ckptd.Client, size: int) -> None:
    """Saves of a root without a bucket, in turns: beside an upload of another root, and without one."""
    small = training_state(size // 4)
    large = training_state(size)
    other = client.run(context.new_root(), num_kept_ckpts=1)
    number = 0

    def stall() -> float:
        nonlocal number
        number += 1
        begin = time.perf_counter()
        save = other.save(f"step_{number}", files=small)
        seconds = time.perf_counter() - begin
        save.wait("committed", timeout=SECONDS)
        return seconds

    quiet: List[float] = []
    beside: List[float] = []
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        stall()
        for turn in range(_turns(context)):
            limits.wait_for_idle_disk(context.folder)
            quiet += [stall() for _ in range(3)]
            run = client.run(context.new_root(), upload=ckptd.Upload(f"{URL}/stalls{turn}"))
            save = run.save("step_1", files=large)
            save.wait("committed", timeout=SECONDS)
            uploaded = thread.submit(save.wait, "uploaded", SECONDS)
            during: List[float] = []
            while not uploaded.done() and len(during) < 3:
                during.append(stall())
            if uploaded.done():
                during = during[:-1]  # It may have begun after the upload.
            uploaded.result()
            beside += during
    if not beside:
        raise SystemExit("no save was made during an upload, so there is nothing to measure")
    words = f"{len(quiet)} saves of {size / 4e9:.2f} GB without an upload {describe_milliseconds(quiet)}, {len(beside)} beside one of "
    words += f"another root {describe_milliseconds(beside)}"
    context.report(
        Result("bucket.save.stall", statistics.median(beside) / statistics.median(quiet), "x", words)
    )
