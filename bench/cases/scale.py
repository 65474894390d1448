"""Costs that must not grow with what the daemon remembers: checkpoints in a root, known roots, ranks, files in a save."""

from __future__ import annotations

import time
import uuid
from typing import Any, Callable, Dict, Iterator, List

from ckptd.v1 import messages_pb2 as messages

from bench.base import machine
from bench.base.context import KIB, MIB, BenchContext
from bench.base.daemon import Daemon
from bench.base.result import Result
from bench.cases import clients
from bench.cases.handoff import percentile
from bench.cases.rank import Rank

PAGE_MS = 5  # The goal of a page of a list.
LAUNCHES = 64  # As many as a run's record keeps.


def run(context: BenchContext) -> None:
    _checkpoints(context, 100 if context.quick else 10_000)
    _roots(context, 10 if context.quick else 1_000)
    _ranks(context, 16 if context.quick else 256, 4 if context.quick else LAUNCHES)
    _files(context, 10_000)


def _checkpoints(context: BenchContext, count: int) -> None:
    """Saves, lists, start and memory of a daemon with a root of many checkpoints."""
    with context.daemon(256 * MIB) as daemon:
        daemon.wait_for_pool()
        root = context.new_root()
        clients.run_python(context, daemon, "fill", count, root=root)
        daemon.wait_until_idle()
        words = f"beside {count} checkpoints in the root"
        memory = machine.private_memory(daemon.pid)
        rank = Rank(daemon, root)
        _report_calls(context, daemon, "scale.checkpoints", [rank], 100, words)
        pages = [seconds * 1e3 for seconds in _pages(rank)]
        listed = f"p99 of {len(pages)} calls, 100 of {count} checkpoints; {min(pages):.2f}-{max(pages):.2f} ms"
        context.report(Result("scale.list_page_ms", percentile(pages, 99), "ms", listed, PAGE_MS))
        rank.close()
        daemon.stop()
        start = time.perf_counter()
        daemon.start()
        machine.wait_until(lambda: _knows(daemon, count), f"the daemon to know {count} checkpoints", 120, 0.001)
        seconds = time.perf_counter() - start
    context.report(Result("scale.start_s", seconds, "s", f"until it answers for {count} checkpoints", 2))
    room = 64 * MIB + count * 2 * KIB
    words = f"the daemon outside the pool, beside {count} checkpoints; the goal is 64 MiB and 2 KiB for each"
    context.report(Result("scale.memory_mib", memory / MIB, "MiB", words, room / MIB))


def _roots(context: BenchContext, count: int) -> None:
    """A first save after the start of a daemon that knows many roots, and saves after that."""
    with context.daemon(256 * MIB) as daemon:
        daemon.wait_for_pool()
        roots = [context.new_root() for _ in range(count)]
        for root in roots:
            rank = Rank(daemon, root)
            rank.save("first", commit=True)
            rank.close()
        daemon.restart()
        start = time.perf_counter()
        rank = Rank(daemon, roots[count // 2])
        rank.save("second", commit=True)
        seconds = time.perf_counter() - start
        words = f"from the start of a daemon that knows {count} roots until one of them has its next checkpoint"
        context.report(Result("scale.first_save_s", seconds, "s", words, 2))
        _report_calls(context, daemon, "scale.roots", [rank], 100, f"beside {count} known roots")
        rank.close()


def _ranks(context: BenchContext, count: int, launches: int) -> None:
    """Begins and Seals of a save by many ranks, whose run has had so many launches."""
    with context.daemon(256 * MIB) as daemon:
        daemon.wait_for_pool()
        root = context.new_root()
        for _ in range(launches - 1):
            for rank in _launch(daemon, root, count):
                rank.close()
        ranks = _launch(daemon, root, count)
        words = f"{count} ranks, after {launches} launches"
        _report_calls(context, daemon, "scale.ranks", ranks, 10 if count > 100 else 2, words)
        for rank in ranks:
            rank.close()


def _launch(daemon: Daemon, root: Any, count: int) -> List[Rank]:
    launch = uuid.uuid4().hex
    return [Rank(daemon, root, number=number, world_size=count, launch=launch) for number in range(count)]


def _files(context: BenchContext, count: int) -> None:
    with context.daemon(256 * MIB) as daemon:
        daemon.wait_for_pool()
        rank = Rank(daemon, context.new_root(), files=count)
        first = (_timed(lambda: rank.begin("first")) + _timed(lambda: rank.seal("first"))) * 1e3
        rank.wait("first")
        words = f"Begin + Seal of the first save of {count} empty files, whose Begin lists them"
        context.report(Result("scale.files.first_ms", first, "ms", words))
        rounds = 10 if context.quick else 30
        _report_calls(context, daemon, "scale.files", [rank], rounds, f"later saves of {count} empty files")
        rank.close()


def _report_calls(
    context: BenchContext, daemon: Daemon, name: str, ranks: List[Rank], rounds: int, words: str
) -> None:
    """Begin and Seal of saves by all ranks. The daemon answers all Begins of a save when the last of them has come: so that one is
    timed, and the Seal of the same rank.
    """
    calls = []
    *others, last = ranks
    for number in range(rounds):
        tag = f"timed_{number}"
        waiting = [rank.begin_later(tag) for rank in others]
        if others:
            daemon.status()  # The engine has heard of them before it answers this.
        seconds = _timed(lambda: last.begin(tag))
        for begun in waiting:
            begun.result()
        for rank in others:
            rank.seal(tag)
        calls.append((seconds + _timed(lambda: last.seal(tag))) * 1e3)
        last.wait(tag)
    words = f"{len(calls)} times Begin + Seal, {words}; {min(calls):.2f}-{max(calls):.2f} ms"
    for percent in (50, 99):
        context.report(Result(f"{name}.p{percent}_ms", percentile(calls, percent), "ms", words))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _pages(rank: Rank) -> Iterator[float]:
    """The seconds of each page of the run's list."""
    request = messages.ListCheckpointsRequest(parent=rank.run, page_size=100)
    while True:
        start = time.perf_counter()
        page = rank.stub.ListCheckpoints(request, metadata=rank.metadata, timeout=60)
        yield time.perf_counter() - start
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _knows(daemon: Daemon, count: int) -> bool:
    runs: Dict[str, int] = {run.path: run.checkpoint_count for run in daemon.status().runs}
    return sum(runs.values()) >= count
