"""A rank that computes all the time and saves now and then: what a save costs the steps beside it."""

from __future__ import annotations

import argparse
import os
import pathlib
import time
from typing import Any, List

import ckptd
import machine
import torch
import torch.distributed as dist
from demo_lib.model import VOCABULARY, Gpt
from demo_lib.train import Journal

from bench_lib import state

QUIET = 20  # Steps before each save.


class Steps:
    """A small GPT on one thread, some tens of milliseconds a step."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._model = Gpt(width=256, layers=4, heads=4)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._tokens = torch.randint(VOCABULARY, (4, self._model.context))

    def __call__(self) -> float:
        start = time.perf_counter()
        self._model(self._tokens, self._tokens).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start


def measure(run: Any, files: Any, tag: str, step: Steps) -> "dict[str, Any]":
    quiet = [step() for _ in range(QUIET)]
    dist.barrier()
    start = time.perf_counter()
    save = run.save(tag, files=files)
    stall = time.perf_counter() - start
    done = save.future("committed")
    during: List[float] = []
    while not done.done():
        during.append(step())
    done.result(timeout=0)
    usual = machine.median(quiet)
    return {"quiet": quiet, "during": during, "stall": stall, "lost": stall + sum(t - usual for t in during)}


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
    tensors = state.tensors_of(files)
    copy = machine.Copy(tensors, threads=1)
    step = Steps()
    for _ in range(10):
        step()
    for number in range(options.rounds + 1):
        state.change(tensors)
        dist.barrier()
        seconds = copy()
        figures = measure(run, files, f"save_{number}", step)
        if number > 0:  # The first is cold.
            journal.write("save", copy=seconds, **figures)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
