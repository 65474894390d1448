"""A rank of a job of DeepSpeed that saves by several checkpoint engines in turn, for deepspeed_save.py."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import pathlib
import shutil
import time
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
import ckptd.deepspeed
import deepspeed

from bench.base import limits
from bench.base.job import Journal
from bench.base.pages import KINDS
from bench.base.tensors import tensors_of

TIMEOUT = 120.0
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}


class Sum(torch.nn.Module):
    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(size // 4 // count) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return torch.stack([weight.square().mean() for weight in self.weights]).sum()


def engine_of(size: int, count: int) -> Any:
    """Returns an engine with `count` parameters of together `size` bytes of float32, and AdamW after one step."""
    model = Sum(size, count)
    optimizer = torch.optim.AdamW(model.parameters())
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)[0]
    engine.backward(engine())
    engine.step()
    return engine


def saving_nothing(base: type) -> Any:
    """Returns a checkpoint engine whose save() only notes the tensors: what DeepSpeed itself takes."""

    class Nothing(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tensors: List[torch.Tensor] = []

        def create(self, info: Any) -> None:
            self.tensors = []

        def save(self, state_dict: Any, path: str) -> None:
            self.tensors += tensors_of(state_dict)

        def load(self, path: str, map_location: Any = None) -> None:
            raise NotImplementedError

        def commit(self, info: Any) -> bool:
            return True

        def is_decoupled(self) -> bool:
            return True  # DeepSpeed writes no `latest` then.

        def preserves_storage_sharing(self) -> bool:
            return False

    return Nothing()


def seconds_of_save(engine: Any, checkpoint_engine: Any, folder: pathlib.Path, tag: str) -> float:
    engine.checkpoint_engine = checkpoint_engine
    dist.barrier()
    start = time.perf_counter()
    engine.save_checkpoint(str(folder), tag=tag)
    return time.perf_counter() - start


def join() -> Tuple[argparse.Namespace, int]:
    """Joins the job. Returns the options and this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of the parameters")
    parser.add_argument("--count", type=int, required=True, help="how many parameters there are")
    parser.add_argument("--pages", choices=KINDS, required=True, help="of the daemon's pool")
    # An optional extension for communication, which would be compiled at the first use.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    return parser.parse_args(), dist.get_rank()


def main() -> None:
    options, rank = join()
    journal = Journal(options.journal)
    ckptd.deepspeed.configure(options.endpoint)
    engine = engine_of(options.size, options.count)
    stock = engine.checkpoint_engine
    nothing = saving_nothing(importlib.import_module(type(stock).__mro__[1].__module__).CheckpointEngine)
    ours = ckptd.deepspeed.CheckpointEngine(num_kept_ckpts=1)
    seconds_of_save(engine, nothing, options.root, "nothing")
    copy = limits.MemoryCopy(nothing.tensors, 1, options.pages)
    for number in range(options.rounds + 1):
        measured: Dict[str, Any] = {}
        engines = [("nothing", nothing), ("ours", ours)]
        for name, checkpoint_engine in engines[:: 1 if number % 2 else -1]:  # Another one is first each time.
            limits.wait_for_idle_disk(options.root)
            measured[name] = seconds_of_save(engine, checkpoint_engine, options.root / name, f"save_{number}")
            if name == "ours":
                ckptd.deepspeed.run(options.root / name)._wait_for_end(f"save_{number}", TIMEOUT)
        measured["copy"] = copy(dist.barrier)
        if number > 0:  # The first is cold.
            journal.write("save", bytes=copy.size, pages=copy.pages(), **measured)
    # In the end: what it leaves in the page cache is gigabytes, and a virtual machine that gives freed memory back to its
    # host is slow for seconds when they are freed.
    for number in range(options.rounds):
        limits.wait_for_idle_disk(options.root)
        journal.write("stock", stock=seconds_of_save(engine, stock, options.root / "stock", f"save_{number}"))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(options.root / "stock")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
