"""One rank of the job of three_nodes.py: examples/training/train_fsdp.py with a journal. torchrun starts it."""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import sys
from typing import Any

import ckptd.dcp
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from bench.base.job import Journal
from bench.base.tensors import named_tensors
from examples.training.model import Gpt
from examples.training.train import SEED, set_deterministic
from examples.training.train_fsdp import Training


def digest(training: Training) -> str:
    """A hash of the shards of this rank, and of the step."""
    found = hashlib.sha256(str(training.step).encode())
    state: Any = training.state_dict()
    for name, tensor in sorted(named_tensors(state).items()):
        shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(name.encode())
        found.update(shard.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journals", type=pathlib.Path, required=True, help="the folder for journals")
    parser.add_argument("--root", required=True, help="the folder for the checkpoints")
    parser.add_argument("--steps", type=int, required=True, help="the step at which training ends")
    parser.add_argument("--without-ckptd", action="store_true", help="save with DCP's own writer")
    parser.add_argument("--load", default="", help="the checkpoint to load without ckptd")
    parser.add_argument("--width", type=int, required=True, help="of the model")
    parser.add_argument("--layers", type=int, required=True, help="of the model")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    journal = Journal(options.journals / f"rank{dist.get_rank()}.jsonl")
    set_deterministic(SEED)
    training = Training(Gpt(options.width, options.layers))
    journal.write("ready")
    if options.without_ckptd:
        last = options.load
    else:
        ckptd.dcp.install(num_kept_ckpts=3)
        last = ckptd.dcp.latest(options.root)
    if last:
        dcp.load({"training": training}, checkpoint_id=last)
        journal.write("resumed", step=training.step, hash=digest(training), tag=os.path.basename(last))
    while training.step < options.steps:
        journal.write("step", step=training.step + 1, loss=training.train_step().hex())
        journal.write("saving", step=training.step, hash=digest(training))
        tag = f"{options.root}/step-{training.step}"
        if options.without_ckptd:
            if training.step == options.steps:
                dcp.save({"training": training}, checkpoint_id=tag)
            continue
        try:
            dcp.save({"training": training}, checkpoint_id=tag)
            journal.write("saved", step=training.step)
        except Exception as error:
            journal.write("failed", step=training.step, reason=getattr(error, "reason", None), text=str(error)[:400])
            sys.exit(3)
    journal.write("end", step=training.step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
