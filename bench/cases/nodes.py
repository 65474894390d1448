"""What etcd costs a save of a run that spans nodes, beside etcd's own transactions in the same run.

The nodes are simulated: bench_nodes.cc has all of a daemon that talks to etcd, in one process, over Debian's etcd with
its data in the bench's folder, on the disk. So on a small machine the nodes and etcd share its cores.

Then real daemons, with an adapter (nodes_dcp.py).
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any, Dict

from bench.base.context import BenchContext
from bench.base.result import Result
from bench.cases import nodes_dcp

MOST_SECONDS = 600
MANY_NODES, MANY_RANKS = 256, 64


def run(context: BenchContext) -> None:
    saves = 20 if context.quick else 100
    for members in (1, 3):
        figures = _measure(context, nodes=3, ranks=2, saves=saves, members=members)
        suffix = "" if members == 1 else f".{members}_members"
        etcd = "a transaction of etcd alone: p50 {:.2f}, p99 {:.2f} ms; ".format(*figures["etcd_ms"])
        etcd += "three at once, one of each node: p50 {:.2f}, p99 {:.2f} ms".format(*figures["etcd_all_ms"])
        for name, place, goal in (("p50", 0, 3.0), ("p99", 1, 5.0)):
            ours = figures["begin_ms"][place]
            context.report(Result(f"nodes.begin.{name}_ms{suffix}", ours, "ms", etcd))
            words = f"{etcd}; ours {ours:.2f} ms"
            context.report(
                Result(f"nodes.begin.{name}{suffix}", ours / figures["etcd_ms"][place], "x", words, goal)
            )
        context.report(
            Result(f"nodes.commit.p50{suffix}", figures["commit_ms"][0], "ms", "from durable to COMMITTED")
        )
        _report_transactions(context, f"nodes.transactions{suffix}", figures, nodes=3)
    figures = _measure(context, nodes=MANY_NODES, ranks=MANY_RANKS, saves=3 if context.quick else 10, members=1)
    words = f"{MANY_NODES} nodes with {MANY_RANKS} ranks each, a root in memory; from durable to COMMITTED"
    context.report(Result("nodes.many.commit.p50", figures["commit_ms"][0], "ms", words))
    words = "as many transactions of etcd at once: p50 {:.0f} ms".format(figures["etcd_all_ms"][0])
    context.report(Result("nodes.many.begin.p50", figures["begin_ms"][0], "ms", words))
    _report_transactions(context, "nodes.many.transactions", figures, nodes=MANY_NODES)
    words = f"all ranks of {MANY_NODES} nodes at once until the last has joined; a Join waits 30 s"
    context.report(Result("nodes.many.join", figures["join_seconds"], "s", words, 10))
    words = "the same for the job's next launch, after the first has saved"
    context.report(Result("nodes.many.join.next", figures["next_join_seconds"], "s", words, 10))
    nodes_dcp.run(context)


def _report_transactions(
    context: BenchContext, name: str, figures: Dict[str, Any], nodes: int
) -> None:
    most = 3 * nodes + 10
    words = f"those that may write, p99, beside 3 for each node + 10 = {most}; and {figures['reads'][1]:.0f} that read"
    context.report(Result(name, figures["writes"][1], "", words, most))


def _measure(context: BenchContext, nodes: int, ranks: int, saves: int, members: int) -> Dict[str, Any]:
    """Pairs of p50 and p99, and single figures, as bench_nodes prints them."""
    program = pathlib.Path(os.environ["CKPTD_BENCH_NODES"])
    with tempfile.TemporaryDirectory(prefix="nodes", dir=context.folder) as folder:
        done = subprocess.run(
            [program, str(nodes), str(ranks), str(saves), str(members), folder],
            cwd=program.with_name(program.name + ".runfiles") / "ckptd",
            stdout=subprocess.PIPE,
            timeout=MOST_SECONDS,
            check=True,
        )
    figures: Dict[str, Any] = json.loads(done.stdout)
    return figures
