"""A rank that computes all the time and saves now and then: what a save costs the steps beside it."""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import ckptd
import machine
import torch
import torch.distributed as dist
from contenders import beside
from contenders.tensors import tensors_of
from demo_lib.model import VOCABULARY, Gpt
from demo_lib.train import Journal

from bench_lib import state

QUIET = 20  # Steps before each save.


class Steps:
    """A GPT that trains on one thread."""

    def __init__(self, model: Gpt, batch: int) -> None:
        torch.set_num_threads(1)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self._tokens = torch.randint(VOCABULARY, (batch, model.context))

    def __call__(self) -> float:
        start = time.perf_counter()
        self.model(self._tokens, self._tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start


def small_steps() -> Steps:
    """Of some tens of milliseconds, warm."""
    step = Steps(Gpt(width=256, layers=4, heads=4), batch=4)
    for _ in range(10):
        step()
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of this rank's state")
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    journal = Journal(options.journal)
    run = ckptd.connect(options.endpoint).run(options.root, num_kept_ckpts=1)
    files = {f"{rank}.{name}": value for name, value in state.training_state(options.size).items()}
    tensors = tensors_of(files)
    copy = machine.Copy(tensors, threads=1)
    step = small_steps()
    for number in range(options.rounds + 1):
        state.change(tensors)
        dist.barrier()
        seconds = copy()
        figures = beside.measure(step, QUIET, lambda: run.save(f"save_{number}", files=files).future("committed"))
        if number > 0:  # The first is cold.
            journal.write("save", copy=seconds, lost=beside.lost(figures, figures["quiet"]), **figures)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
