"""What a save costs training with ckptd, with torch.save and fsync, and with DCP's asynchronous save in its best settings.

They take turns in one job, with the same state, while every rank trains, so that no core is idle. Of each save:
  stall    how long training waits (the slowest rank)
  durable  from the call until the library reports the end
  lost     the stall, and how much longer the steps until the end took than quiet ones
"""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import statistics
import time
from typing import Dict, List, Tuple

import torch.distributed as dist

from bench.base import limits, save_cost
from bench.base.job import Job, Journal
from bench.base.tensors import tensors_of
from bench.contenders import catalog
from examples.training.train import Trainer

CONTENDERS = (catalog.CKPTD, catalog.TORCH_SAVE_SYNCED, catalog.DCP_THREAD, catalog.DCP_PROCESS)
QUIET_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True, help="the folder for ckptd")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="the folder for the others")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()

    journal = Journal(options.journal)
    dist.init_process_group("gloo")
    trainer = Trainer(int(os.environ["RANK"]))
    for _ in range(2):
        trainer.train_step()
    copy = limits.MemoryCopy(tensors_of(trainer.files()), threads=1)

    def step() -> float:
        start = time.perf_counter()
        trainer.train_step()
        return time.perf_counter() - start

    saves = {
        name: catalog.make(name, options.root if name == catalog.CKPTD else options.folder, options.endpoint)
        for name in CONTENDERS
    }
    for round_number in range(options.rounds):
        # Each round begins with another contender, so that delayed work of the disk affects all alike.
        limits.wait_for_idle_disk(options.folder)
        dist.barrier()
        journal.write("disk", seconds=limits.time_direct_write(options.folder, copy.size))
        order = list(saves.items())
        first = round_number % len(order)
        for name, contender in order[first:] + order[:first]:
            limits.wait_for_idle_disk(options.folder)  # The last checkpoint's files were just deleted.
            dist.barrier()
            journal.write("copy", turn=copy(), bytes=copy.size)
            tag = f"round_{round_number}.{CONTENDERS.index(name)}"
            step()
            figures = save_cost.measure(step, QUIET_STEPS, lambda: contender.save(tag, trainer.files()))
            journal.write("save", contender=name, round=round_number, **figures)
            dist.barrier()
            if trainer.rank == 0:
                contender.remove(tag)
    dist.barrier()
    # DCP's background process cannot be shut down cleanly in every state, and nothing is left to finish.
    os._exit(0)


Figures = Dict[str, Dict[str, List[float]]]


def collect(job: Job, ranks: int) -> Tuple[Figures, float, float]:
    """({contender: {figure: warm values}}, the best copy in seconds, a rank's bytes). All values are the slowest rank's."""
    per_rank = [job.events(rank, "save") for rank in range(ranks)]
    for entries in per_rank:
        # Quiet steps are the same for all contenders; the median of all of them is the most reliable.
        quiet = [seconds for entry in entries for seconds in entry["quiet"]]
        for entry in entries:
            entry["lost"] = save_cost.lost_seconds(entry, quiet)
    figures: Figures = {name: {key: [] for key in ("stall", "durable", "lost")} for name in CONTENDERS}
    for entries in zip(*per_rank):
        if entries[0]["round"] > 0:  # The first save of each contender is cold.
            for key, values in figures[entries[0]["contender"]].items():
                values.append(max(entry[key] for entry in entries))
    turns = [
        limits.slowest_of([entry["turn"] for entry in entries])
        for entries in zip(*(job.events(r, "copy") for r in range(ranks)))
    ]
    return figures, limits.best_copy(turns).seconds, job.events(0, "copy")[0]["bytes"]


def disk_seconds(job: Job, ranks: int) -> float:
    """What the disk takes for the bytes of all ranks, each in a file of its own, while nothing else happens."""
    turns = zip(*(job.events(rank, "disk") for rank in range(ranks)))
    return statistics.median(max(entry["seconds"] for entry in entries) for entries in turns)


def measurement_error(*figures: List[float]) -> float:
    """Half the range of the most scattered of some figures. Their values differ by what else the machine does meanwhile."""
    return max(max(values) - min(values) for values in figures) / 2


def expected_seconds(disk: float, rounds: int) -> float:
    """What the comparison takes where the disk takes `disk` seconds for the bytes of all ranks, and the cores are idle."""
    writes = rounds * (1 + 1.2 * len(CONTENDERS))
    return writes * disk + rounds * len(CONTENDERS) * 4.0  # Quiet steps, and the wait for an idle disk.


def table(figures: Figures, copy: float, size: float, ranks: int) -> str:
    out = io.StringIO()
    out.write(
        f"{ranks} ranks, {size / 1e6:.0f} MB each, all cores computing; "
        "warm saves in turns: median [min-max], seconds.\n"
    )
    out.write(f"One copy of a rank's bytes, all ranks concurrently: {copy:.3f}\n")
    out.write(f"{'':<38}{'stall':<24}{'durable':<24}{'training time lost':<24}\n")
    for name, values in figures.items():
        cells = [
            f"{statistics.median(values[key]):.3f} [{min(values[key]):.3f}-{max(values[key]):.3f}]"
            for key in ("stall", "durable", "lost")
        ]
        out.write(f"{name:<38}" + "".join(f"{cell:<24}" for cell in cells).rstrip() + "\n")
    return out.getvalue()


if __name__ == "__main__":
    main()
