"""What a save costs training: ckptd, torch.save with fsync, DCP's asynchronous save as well set up as can be.

All in one job, in turns, on the same state, each rank computing all the time, so that no core is spare.
For a save:
  stall    how long the trainer stood still (the slowest rank)
  durable  from the call until the library says that all is done
  lost     stall, and what the steps until then took longer than quiet ones
"""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import time
from typing import Dict, List, Tuple

import machine
import torch.distributed as dist
from contenders import beside, catalog
from contenders.tensors import tensors_of

from demo_lib.launch import Job
from demo_lib.train import Journal, Trainer

CONTENDERS = (catalog.CKPTD, catalog.TORCH_SAVE_SYNCED, catalog.DCP_THREAD, catalog.DCP_PROCESS)
QUIET_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True, help="where ckptd writes")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the others write")
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()

    journal = Journal(options.journal)
    dist.init_process_group("gloo")
    trainer = Trainer(int(os.environ["RANK"]))
    for _ in range(2):
        trainer.train_step()
    copy = machine.Copy(tensors_of(trainer.files()), threads=1)

    def step() -> float:
        start = time.perf_counter()
        trainer.train_step()
        return time.perf_counter() - start

    saves = {
        name: catalog.make(name, options.root if name == catalog.CKPTD else options.folder, options.endpoint)
        for name in CONTENDERS
    }
    for round_number in range(options.rounds):
        # Another one begins each time: what the disk does late falls to each of them.
        order = list(saves.items())
        first = round_number % len(order)
        for name, contender in order[first:] + order[:first]:
            machine.settle(options.folder)  # After the deletion of the last one's files.
            dist.barrier()
            journal.write("copy", seconds=copy(), bytes=copy.size)
            tag = f"round_{round_number}.{CONTENDERS.index(name)}"
            step()
            figures = beside.measure(step, QUIET_STEPS, lambda: contender.save(tag, trainer.files()))
            journal.write("save", contender=name, round=round_number, **figures)
            dist.barrier()
            if trainer.rank == 0:
                contender.remove(tag)
    dist.barrier()
    # DCP's background process has no orderly way out of every state; nothing of ours is left to finish.
    os._exit(0)


Figures = Dict[str, Dict[str, List[float]]]


def collect(job: Job, ranks: int) -> Tuple[Figures, float, float]:
    """({contender: {figure: warm values}}, best copy in seconds, a rank's bytes); all the slowest rank's."""
    per_rank = [job.events(rank, "save") for rank in range(ranks)]
    for entries in per_rank:
        # A quiet step is the same for all of them: the more are seen, the surer its median.
        quiet = [seconds for entry in entries for seconds in entry["quiet"]]
        for entry in entries:
            entry["lost"] = beside.lost(entry, quiet)
    figures: Figures = {name: {key: [] for key in ("stall", "durable", "lost")} for name in CONTENDERS}
    for entries in zip(*per_rank):
        if entries[0]["round"] > 0:  # The first of each allocates its buffers.
            for key, values in figures[entries[0]["contender"]].items():
                values.append(max(entry[key] for entry in entries))
    copies = [
        max(entry["seconds"] for entry in entries)
        for entries in zip(*(job.events(r, "copy") for r in range(ranks)))
    ]
    return figures, min(copies), job.events(0, "copy")[0]["bytes"]


def table(figures: Figures, copy: float, size: float, ranks: int) -> str:
    out = io.StringIO()
    out.write(
        f"{ranks} ranks, {size / 1e6:.0f} MB each, all cores computing; "
        "warm saves in turns: median [min-max], seconds.\n"
    )
    out.write(f"One copy of a rank's bytes, both at once: {copy:.3f}\n")
    out.write(f"{'':<38}{'stall':<22}{'durable':<22}{'training time lost':<22}\n")
    for name, values in figures.items():
        cells = [
            f"{machine.median(values[key]):.3f} [{min(values[key]):.3f}-{max(values[key]):.3f}]"
            for key in ("stall", "durable", "lost")
        ]
        out.write(f"{name:<38}" + "".join(f"{cell:<22}" for cell in cells).rstrip() + "\n")
    return out.getvalue()


if __name__ == "__main__":
    main()
