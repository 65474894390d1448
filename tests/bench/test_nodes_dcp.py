"""The figures of an adapter on two nodes, with real daemons and etcd."""

from __future__ import annotations

import pathlib
import tempfile
from typing import List

from bench.base.context import MIB, BenchContext
from bench.base.result import Result
from bench.cases import nodes_dcp


def test_jobs_on_one_node_and_on_two_save_in_turns_and_all_are_measured() -> None:
    results: List[Result] = []
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        context = BenchContext(pathlib.Path(folder), quick=True, clients=[], results=results)
        context.size = 64 * MIB
        found = nodes_dcp.measure(context, context.size // 2, saves=2)
        assert set(found) == set(nodes_dcp.JOBS)
        for seconds in found.values():
            assert len(seconds.stall) == len(seconds.committed) == 2, seconds
            assert all(0 < stall < committed for stall, committed in zip(*seconds)), seconds
        manifests = [path.read_bytes() for path in pathlib.Path(folder).glob("root*/save_2/.ckptd/manifest")]
        assert len(manifests) == 3, "the last checkpoint of each job is there"
