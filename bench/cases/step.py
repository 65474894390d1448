"""What a save costs the training steps that run at the same time."""

from __future__ import annotations

import os
import statistics
from typing import Any, Dict, List, Sequence

from bench.base import limits
from bench.base.context import GIB, BenchContext, describe_milliseconds
from bench.base.job import Job
from bench.base.result import Result


def run(context: BenchContext) -> None:
    """Measures one rank with a core to spare, then a rank on every core."""
    cores = os.cpu_count() or 1
    if cores > 1:
        _report_inflation(context, [entries[0] for entries in _saves(context, 1)], cores)
    ranks = min(cores, 8)
    measured = _saves(context, ranks)
    copy = limits.best_copy([limits.slowest_of([entry["copy"] for entry in entries]) for entries in measured])
    lost = [max(entry["lost"] for entry in entries) for entries in measured]
    words = f"a copy of a rank's bytes by {copy.loop}, {ranks} ranks on {cores} cores, {measured[0][0]['pages']}: {copy.seconds * 1e3:.0f} ms"
    words = f"{words}; ours {describe_milliseconds(lost)}"
    context.report(Result("save.lost.vs_copy", statistics.median(lost) / copy.seconds, "x", words))


def _report_inflation(context: BenchContext, saves: List[Dict[str, Any]], cores: int) -> None:
    quiet = [seconds for save in saves for seconds in save["quiet"]]
    # The last step during a save ends after the commit.
    during = [seconds for save in saves for seconds in save["during"][:-1]]
    if not during:
        raise SystemExit("no step ended before its save was committed, so there is nothing to measure")
    words = f"{len(quiet)} steps with no save, {len(during)} during one, in turns; 1 rank, {cores} cores"
    words = f"{words}; ours {describe_milliseconds(during)}"
    value = statistics.median(during) / statistics.median(quiet)
    context.report(Result("save.step_inflation", value, "x", words))


def _saves(context: BenchContext, ranks: int) -> List[Sequence[Dict[str, Any]]]:
    """What each rank measured of each warm save."""
    size = max(context.size, GIB)  # So large that some steps end while it is written.
    with context.daemon(size * 3 // 2) as daemon:
        pages = daemon.wait_for_pool()
        arguments = [f"--endpoint={daemon.endpoint}", f"--root={context.new_root()}", f"--pages={pages}"]
        arguments += [f"--rounds={1 if context.quick else 3}", f"--size={size // ranks}"]
        with Job("bench.cases.programs.training_rank", daemon.folder, "steps", arguments, ranks) as job:
            job.wait(600)
        return list(zip(*(job.events(rank, "save") for rank in range(ranks))))
