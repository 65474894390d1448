"""Stall, rate and time to publish of large saves, and what they cost the daemon."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any, Dict, List, Optional, Tuple

from bench.base import fio, limits
from bench.base.context import MIB, SUFFIX, BenchContext, describe_milliseconds, describe_rates
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases import clients

Log = Dict[Tuple[str, str], Dict[str, Any]]  # The daemon's log line of each save, by (root, tag).
SAVES = 3  # Of a client in a round, after its first one.


def run(context: BenchContext) -> None:
    runs: Dict[str, Dict[str, Any]] = {}
    with context.daemon(context.size * 3 // 2) as daemon:
        pages = daemon.wait_for_pool()
        with context.fio_buffers(pages) as buffers:
            for client in context.clients:
                daemon.wait_for_pool()
                runs[client] = _save(context, client, daemon, pages, buffers.huge)
                daemon.wait_until_idle()
        if "python" in context.clients:
            _report_finite_check(context, daemon)
        log = daemon.saves()
    if "python" in context.clients:
        _report_first(context, pages)
    publish = [limits.time_durable_publish(context.folder) * 1e3 for _ in range(20)]
    for client, measured in runs.items():
        _report_save(context, SUFFIX[client], measured, log, buffers.words)
        _report_publish(context, SUFFIX[client], measured, log, publish)
    if "python" in runs:
        _report_daemon(context, runs["python"], pages)


def _save(
    context: BenchContext, client: str, daemon: Daemon, pages: str, huge: Optional[pathlib.Path]
) -> Dict[str, Any]:
    if client == "python":
        options: Dict[str, Any] = {
            "size": context.size,
            "threads": context.threads,
            "folder": context.folder,
            "pid": daemon.pid,
            "pages": pages,
        }
        if huge:
            options["huge"] = huge
        return clients.run_python(context, daemon, "big", SAVES, **options)
    limit = fio.Fio(context.folder, context.size, huge)
    for _ in fio.COMBINATIONS:
        limit()
    measured = clients.run_cpp(context, daemon, context.size, SAVES, pages=pages)
    for _ in fio.COMBINATIONS:
        limit()
    return {**measured, "fio": limit.rates}


def _report_save(context: BenchContext, suffix: str, run: Dict[str, Any], log: Log, buffers: str) -> None:
    size = run["bytes"]
    copy = limits.best_copy(run["copies"])
    limit = f"a copy of {size / 1e9:.2f} GB by {copy.loop}, {context.threads} threads, {run['pages']}: {copy.seconds * 1e3:.0f} ms"
    for name, seconds in (("warm", run["warm"]), ("cold", [run["cold"]])):
        words = f"{limit}; ours {describe_milliseconds(seconds)}"
        context.report(
            Result(f"save.stall.{name}{suffix}", statistics.median(seconds) / copy.seconds, "x", words)
        )

    durable = [size / (log[key]["written_ms"] - log[key]["staged_ms"]) * 1e3 for key in run["keys"][1:]]
    for name, only in (("vs_fio", ""), ("vs_fio_from_memory", fio.FROM_MEMORY)):
        disk = fio.Rates(buffers, [run["fio"]], only)
        words = f"{disk.description()}; ours {describe_rates(durable)}"
        value = statistics.median(durable) / disk.best()
        context.report(Result(f"save.durable.{name}{suffix}", value, "x", words))


def _report_finite_check(context: BenchContext, daemon: Daemon) -> None:
    """What `check=ckptd.Finite()` adds to a stall."""
    options: Dict[str, Any] = {"size": context.size, "folder": context.folder}
    stalls = clients.run_python(context, daemon, "checked", 2, **options)
    daemon.wait_until_idle()
    words = f"the stall without the check {describe_milliseconds(stalls['without'])}"
    words = f"{words}; with it {describe_milliseconds(stalls['with'])}"
    value = statistics.median(stalls["with"]) / statistics.median(stalls["without"])
    context.report(Result("save.finite_check", value, "x", words))


def _report_first(context: BenchContext, pages: str) -> None:
    """The first save, right after the daemon's start, while the pool is being faulted in."""
    run = clients.run_first(context, context.size * 3 // 2, pages)
    words = f"right after the daemon's start; the plain way, {context.threads} threads that fault in {run['pages']} as the pool has "
    words += f"and copy by {run['loop']}: {describe_milliseconds(run['plain'])}; ours {describe_milliseconds([run['stall']])}"
    context.report(Result("save.stall.first", run["stall"] / statistics.median(run["plain"]), "x", words))


def _report_publish(
    context: BenchContext, suffix: str, run: Dict[str, Any], log: Log, publish: List[float]
) -> None:
    lines = [log[key] for key in run["keys"][1:]]
    visible = [line["committed_ms"] - line["written_ms"] for line in lines]
    words = f"write, fsync, rename, fsync of 4 KiB: {statistics.median(publish):.1f} ms"
    words = f"{words}; ours {describe_milliseconds(visible, 1)}"
    context.report(Result(f"save.visible_ms{suffix}", statistics.median(visible), "ms", words))


def _report_daemon(context: BenchContext, run: Dict[str, Any], pages: str) -> None:
    words = f"with CRC32C, {pages} pages in the pool"
    context.report(Result("daemon.cpu_s_per_gb", run["cpu"], "s/GB", words))
    words = "the highest VmRSS without RssShmem"
    context.report(Result("daemon.rss_outside_pool_mib", run["memory"] / MIB, "MiB", words, combine=max))
