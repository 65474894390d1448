"""Stall, rate and time to publish of large saves, and what they cost the daemon."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Tuple

from bench.base import fio, limits
from bench.base.context import MIB, SUFFIX, BenchContext, describe_milliseconds, describe_rates
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases import clients

Log = Dict[Tuple[str, str], Dict[str, Any]]  # The daemon's log line of each save, by (root, tag).


def run(context: BenchContext) -> None:
    processes, rounds = (1, 3) if context.quick else (3, 3)
    runs: Dict[str, List[Dict[str, Any]]] = {client: [] for client in context.clients}
    with context.daemon(context.size * 3 // 2) as daemon:
        for _ in range(processes):
            for client in context.clients:
                pages = daemon.wait_for_pool()
                runs[client].append(_save(context, client, daemon, rounds))
                daemon.wait_until_idle()
        if "python" in context.clients:
            _report_finite_check(context, daemon, rounds)
        log = daemon.saves()
    if "python" in context.clients:
        _report_first(context)
    publish = [limits.time_durable_publish(context.folder) * 1e3 for _ in range(20)]
    for client, measured in runs.items():
        _report_save(context, SUFFIX[client], measured, log)
        _report_publish(context, SUFFIX[client], measured, log, publish)
    if "python" in runs:
        _report_daemon(context, runs["python"], pages)


def _save(context: BenchContext, client: str, daemon: Daemon, rounds: int) -> Dict[str, Any]:
    if client == "python":
        options: Dict[str, Any] = {
            "size": context.size,
            "threads": context.threads,
            "folder": context.folder,
            "pid": daemon.pid,
        }
        if context.huge:
            options["huge"] = context.huge
        return clients.run_python(context, daemon, "big", rounds, **options)
    limit = fio.Fio(context.folder, context.size, context.huge)
    for _ in fio.COMBINATIONS:
        limit()
    measured = clients.run_cpp(context, daemon, context.size, rounds)
    for _ in fio.COMBINATIONS:
        limit()
    return {**measured, "fio": limit.rates}


def _report_save(context: BenchContext, suffix: str, runs: List[Dict[str, Any]], log: Log) -> None:
    size = runs[0]["bytes"]
    copy = limits.best_copy([turn for run in runs for turn in run["copies"]])
    limit = f"a copy of {size / 1e9:.2f} GB by {copy.loop}, {context.threads} threads: {copy.seconds * 1e3:.0f} ms"
    warm = [seconds for run in runs for seconds in run["warm"]]
    cold = [run["cold"] for run in runs]
    for name, seconds in (("warm", warm), ("cold", cold)):
        words = f"{limit}; ours {describe_milliseconds(seconds)}"
        context.report(
            Result(f"save.stall.{name}{suffix}", statistics.median(seconds) / copy.seconds, "x", words)
        )

    durable = [
        size / (log[key]["written_ms"] - log[key]["staged_ms"]) * 1e3
        for run in runs
        for key in run["keys"][1:]
    ]
    for name, only in (("vs_fio", ""), ("vs_fio_from_memory", fio.FROM_MEMORY)):
        disk = fio.Rates(context.huge is not None, [run["fio"] for run in runs], only)
        words = f"{disk.description()}; ours {describe_rates(durable)}"
        value = statistics.median(durable) / disk.best()
        context.report(Result(f"save.durable.{name}{suffix}", value, "x", words))


def _report_finite_check(context: BenchContext, daemon: Daemon, rounds: int) -> None:
    """What `check=ckptd.Finite()` adds to a stall."""
    options = {"size": context.size, "folder": context.folder}
    stalls = clients.run_python(context, daemon, "checked", 2 * rounds, **options)
    daemon.wait_until_idle()
    words = f"the stall without the check {describe_milliseconds(stalls['without'])}"
    words = f"{words}; with it {describe_milliseconds(stalls['with'])}"
    value = statistics.median(stalls["with"]) / statistics.median(stalls["without"])
    context.report(Result("save.finite_check", value, "x", words))


def _report_first(context: BenchContext) -> None:
    """The first save, right after the daemon's start, while the pool is being faulted in."""
    runs = [clients.run_first(context, context.size * 3 // 2) for _ in range(1 if context.quick else 3)]
    copy = limits.best_copy([turn for run in runs for turn in run["copies"]])
    seconds = [run["stall"] for run in runs]
    words = f"right after the daemon's start; a copy by {copy.loop}, {context.threads} threads: {copy.seconds * 1e3:.0f} ms"
    words = f"{words}; ours {describe_milliseconds(seconds)}"
    context.report(Result("save.stall.first", statistics.median(seconds) / copy.seconds, "x", words))


def _report_publish(
    context: BenchContext, suffix: str, runs: List[Dict[str, Any]], log: Log, publish: List[float]
) -> None:
    lines = [log[key] for run in runs for key in run["keys"][1:]]
    visible = [line["committed_ms"] - line["written_ms"] for line in lines]
    words = f"write, fsync, rename, fsync of 4 KiB: {statistics.median(publish):.1f} ms"
    words = f"{words}; ours {describe_milliseconds(visible, 1)}"
    context.report(Result(f"save.visible_ms{suffix}", statistics.median(visible), "ms", words))


def _report_daemon(context: BenchContext, runs: List[Dict[str, Any]], pages: str) -> None:
    cpu = [run["cpu"] for run in runs]
    words = f"with CRC32C, {pages} pages in the pool; {min(cpu):.3f}-{max(cpu):.3f}"
    context.report(Result("daemon.cpu_s_per_gb", statistics.median(cpu), "s/GB", words))
    memory = max(run["memory"] for run in runs) / MIB
    words = "the highest VmRSS without RssShmem"
    context.report(Result("daemon.rss_outside_pool_mib", memory, "MiB", words))
