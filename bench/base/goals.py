"""The goals of ckptd's figures. Every figure is reported by one of the cases, beside the
limit that the same run measures.
"""

from __future__ import annotations

from typing import Dict, NamedTuple


class Goal(NamedTuple):
    bound: float
    at_least: bool = False  # The bound is the least that is good; else the most.


GOALS: Dict[str, Goal] = {
    # The stall of a save, in copies by the fastest loop of this processor.
    "save.stall.warm": Goal(1.05),
    "save.stall.cold": Goal(2),
    # The stall of a save of DCP on two nodes, in stalls of the same ranks on one node.
    "nodes.dcp.stall": Goal(1.1),
    "nodes.dcp.stall.etcd_on_same_disk": Goal(1.3),
    # Begin + Seal.
    "save.handoff.p50_ms": Goal(1),
    "save.handoff.p99_ms": Goal(5),
    "scale.checkpoints.p50_ms": Goal(1),
    "scale.checkpoints.p99_ms": Goal(5),
    "scale.roots.p50_ms": Goal(1),
    "scale.roots.p99_ms": Goal(5),
    "scale.ranks.p50_ms": Goal(1),
    "scale.ranks.p99_ms": Goal(5),
    "scale.files.p99_ms": Goal(5),
    "nodes.begin.p50_ms": Goal(10),
    "nodes.begin.p99_ms": Goal(40),
    # Bytes to the disk, of fio's best rate; and from the last durable byte until all see the checkpoint.
    "save.durable.vs_fio": Goal(0.97, at_least=True),
    "save.durable.vs_fio_from_memory": Goal(0.97, at_least=True),
    "save.visible_ms": Goal(10),
    "nodes.commit.p50": Goal(50),
    "nodes.many.commit.p50": Goal(2000),
    # Of a state of which 1 % has changed, with share_unchanged.
    "unchanged.written": Goal(0.02),
    # What a save costs others.
    "daemon.cpu_s_per_gb": Goal(0.05),
    "save.step_inflation": Goal(1.02),
    "save.lost.vs_copy": Goal(2),
    # Restores: of a copy, of fio's best rate, and of a loop that touches fresh huge pages and copies.
    "restore.resident.vs_copy": Goal(0.95, at_least=True),
    "restore.disk.vs_fio": Goal(0.95, at_least=True),
    "restore.resident.fresh": Goal(0.8, at_least=True),
    "restore.disk.fresh": Goal(0.8, at_least=True),
    # The daemon.
    "daemon.rss_outside_pool_mib": Goal(64),
    "daemon.ready_s": Goal(0.1),
    # Saves beside a hostile user.
    "hostile.failed_saves": Goal(0),
    "hostile.longest_stall_s": Goal(10),
}

# A state of 10 GB on a GPU: what an overlapping save adds to its step, and to the steps while it is written; and the
# blocking call, of the limit of its copies.
GPU_GOALS: Dict[str, Goal] = {
    "gpu.blocked_ms.10gb.bf16": Goal(10),
    "gpu.step_inflation.10gb.bf16": Goal(1.02),
    "gpu.d2h.vs_limit.10gb.bf16": Goal(0.95, at_least=True),
}

# A checkpoint to a bucket and back, of the rate of the fastest public client; and what an upload costs others.
BUCKET_GOALS: Dict[str, Goal] = {
    "bucket.upload.vs_client": Goal(0.95, at_least=True),
    "bucket.fetch.vs_client": Goal(0.95, at_least=True),
    "bucket.upload.daemon.vs_client": Goal(0.95, at_least=True),
    "bucket.fetch.daemon.vs_client": Goal(0.95, at_least=True),
    "bucket.step_inflation": Goal(1.05),
    "bucket.save.stall": Goal(1.05),
}


def goal_of(figure: str) -> "Goal | None":
    """The goal of a figure, whichever client it is of, and however many members etcd has."""
    return {**GOALS, **GPU_GOALS, **BUCKET_GOALS}.get(figure.removesuffix(".cpp").removesuffix(".3_members"))
