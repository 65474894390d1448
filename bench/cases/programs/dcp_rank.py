"""A rank of a job that saves with DCP through ckptd, each time when it is its job's turn. For nodes_dcp.py."""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import time

import ckptd.dcp
import torch
import torch.distributed as dist

from bench.base.job import Journal

TENSORS = 16  # Of a rank.
TURN = datetime.timedelta(minutes=10)
TIMEOUT = 120.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--endpoints", required=True, help="of the daemon of each node; the ranks are on them in blocks")
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of this rank's tensors")
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True, help="the port of a store that says whose turn it is")
    parser.add_argument("--name", required=True, help="of the job, in that store")
    options = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    endpoints = options.endpoints.split(",")
    on_node = world_size // len(endpoints)
    os.environ.update(LOCAL_RANK=str(rank % on_node), LOCAL_WORLD_SIZE=str(on_node))
    dist.init_process_group("gloo")
    ckptd.dcp.configure(endpoints[rank // on_node])
    journal = Journal(options.journal)
    turns = dist.TCPStore("127.0.0.1", options.turns, is_master=False)
    # DCP would write keys that ranks have in common only once.
    state = {f"rank_{rank}": [torch.randn(options.size // 4 // TENSORS) for _ in range(TENSORS)]}
    for number in range(options.saves):
        turns.wait([f"{options.name}/{number}"], TURN)
        dist.barrier()
        start = time.perf_counter()
        writer = ckptd.dcp.Writer(options.root / f"save_{number}", num_kept_ckpts=1)
        saved = ckptd.dcp.async_save(state, storage_writer=writer)
        stall = time.perf_counter() - start
        saved.result(timeout=TIMEOUT)
        journal.write("save", stall=stall, committed=time.perf_counter() - start)
        turns.set(f"{options.name}/{number}/{rank}", "committed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
