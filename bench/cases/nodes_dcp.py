"""How long a save of ckptd.dcp holds up four ranks, two on each of two nodes, beside four ranks on one node. The jobs live at the
same time and save in turns, all on this machine: what a network between nodes adds is not in the figures.

async_save() waits for etcd when it begins, and not when the parts are sealed: a third job shows it, whose etcd is on the disk of the
checkpoints, where each of its syncs waits for what the daemons write.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
from typing import Dict, List, NamedTuple

import torch.distributed as dist

from bench.base import limits, machine
from bench.base.context import BenchContext, describe_milliseconds
from bench.base.daemon import Daemon
from bench.base.etcd import MEMORY, Etcd
from bench.base.job import Job
from bench.base.result import Result

RANKS = 4
ONE, TWO, SAME_DISK = JOBS = ("one_node", "two_nodes", "two_nodes_etcd_on_same_disk")


class Seconds(NamedTuple):
    """Of each save, until the slowest rank went on, and until it knew the checkpoint to be committed."""

    stall: List[float]
    committed: List[float]


class Setup(NamedTuple):
    """A job, and the daemons of its nodes."""

    job: Job
    daemons: List[Daemon]


def run(context: BenchContext) -> None:
    size = context.size // 2
    found = measure(context, size, saves=5 if context.quick else 15)
    _report(context, "nodes.dcp.stall", size, found[ONE].stall, found[TWO].stall, "its data in memory")
    _report(context, "nodes.dcp.stall.etcd_on_same_disk", size, found[ONE].stall, found[SAME_DISK].stall, "its data on that disk")
    _report(context, "nodes.dcp.committed", size, found[ONE].committed, found[TWO].committed, "its data in memory")


def _report(context: BenchContext, name: str, size: int, one: List[float], two: List[float], etcd: str) -> None:
    words = f"async_save() of {RANKS} ranks, {size / 1e9:.2f} GB in all, on one node: {describe_milliseconds(one)}; on two "
    words += f"{describe_milliseconds(two)}, with one member of etcd, {etcd}"
    context.report(Result(name, statistics.median(two) / statistics.median(one), "x", words))


def measure(context: BenchContext, size: int, saves: int) -> Dict[str, Seconds]:
    """By job. The first save of each, in which the ranks join, is not counted."""
    with contextlib.ExitStack() as stack:
        in_memory = stack.enter_context(Etcd(MEMORY if MEMORY.is_dir() else context.folder))
        on_disk = stack.enter_context(Etcd(context.folder))
        turns = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        options = [f"--size={size // RANKS}", f"--saves={saves + 1}", f"--turns={turns.port}"]
        setups: Dict[str, Setup] = {}
        for name in JOBS:
            root = context.new_root()
            if name == ONE:
                daemons = [stack.enter_context(context.daemon(size * 3 // 2))]
            else:
                daemons = _pair(context, stack, in_memory if name == TWO else on_disk, root, size * 3 // 4)
            for daemon in daemons:
                daemon.wait_for_pool()
            endpoints = ",".join(daemon.endpoint for daemon in daemons)
            arguments = [*options, f"--endpoints={endpoints}", f"--root={root}", f"--name={name}"]
            job = Job("bench.cases.programs.dcp_rank", daemons[0].folder, name, arguments, RANKS)
            setups[name] = Setup(stack.enter_context(job), daemons)
        for number in range(saves + 1):
            first = number % len(JOBS)  # Another one is first each time.
            for name in JOBS[first:] + JOBS[:first]:
                _let_save(context, turns, setups[name], f"{name}/{number}")
        for setup in setups.values():
            setup.job.wait(60)
        return {name: _seconds_of(setup.job) for name, setup in setups.items()}


def _pair(context: BenchContext, stack: contextlib.ExitStack, etcd: Etcd, root: pathlib.Path, pool: int) -> List[Daemon]:
    """The daemons of two nodes that share a root."""
    found: List[Daemon] = []
    for name in ("gpu1", "gpu2"):
        cluster = f'cluster {{ node_name: "{name}" etcd_endpoints: "{etcd.endpoint}" shared_folders: "{root}" }}'
        daemon = stack.enter_context(context.daemon(pool, config=cluster))
        machine.wait_until(lambda: bool(daemon.status().cluster.registered), f"the daemon of {name} to register", 60)
        found.append(daemon)
    return found


def _let_save(context: BenchContext, turns: "dist.TCPStore", setup: Setup, turn: str) -> None:
    """Gives a job its turn, and waits until all ranks know that their save is committed."""
    for daemon in setup.daemons:
        daemon.wait_until_idle()
    limits.wait_for_idle_disk(context.folder)
    turns.set(turn, "")

    def all_committed() -> bool:
        setup.job.check()
        return bool(turns.check([f"{turn}/{rank}" for rank in range(RANKS)]))

    machine.wait_until(all_committed, f"the save {turn}", 180)


def _seconds_of(job: Job) -> Seconds:
    saves = list(zip(*([entry for entry in job.events(rank, "save")][1:] for rank in range(RANKS))))
    return Seconds(*([max(entry[key] for entry in ranks) for ranks in saves] for key in ("stall", "committed")))
