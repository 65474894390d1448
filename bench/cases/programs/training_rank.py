"""A rank that trains all the time and saves now and then, for step.py."""

from __future__ import annotations

import argparse
import os
import pathlib

import ckptd
import torch.distributed as dist

from bench.base import limits, save_cost, training_state
from bench.base.gpt_steps import small_gpt_steps
from bench.base.job import Journal
from bench.base.pages import KINDS
from bench.base.tensors import tensors_of

QUIET_STEPS = 20  # Before each save.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of this rank's state")
    parser.add_argument("--pages", choices=KINDS, required=True, help="of the daemon's pool")
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    journal = Journal(options.journal)
    run = ckptd.connect(options.endpoint).run(options.root, num_kept_ckpts=1)
    files = {f"{rank}.{name}": value for name, value in training_state.training_state(options.size).items()}
    tensors = tensors_of(files)
    copy = limits.MemoryCopy(tensors, 1, options.pages)
    step = small_gpt_steps()
    for number in range(options.rounds + 1):
        training_state.change(tensors)
        turn = copy(dist.barrier)
        save = save_cost.measure(
            step, QUIET_STEPS, lambda: run.save(f"save_{number}", files=files).future("committed")
        )
        if number > 0:  # The first is cold.
            journal.write("save", copy=turn, pages=copy.pages(), lost=save_cost.lost_seconds(save, save["quiet"]), **save)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
