"""Trains a small GPT with FSDP2, saves it with PyTorch Distributed Checkpoint (DCP) through ckptd, and resumes on
any number of ranks.

From the top of the repository:

    torchrun --nproc_per_node=2 -m examples.training.train_fsdp --root=/data/ckpts --steps=100 --save_every=10
    torchrun --nproc_per_node=4 -m examples.training.train_fsdp --root=/data/ckpts --steps=200 --save_every=10

Without the line `ckptd.dcp.install(...)` it runs with DCP's own writer, apart from finding the latest checkpoint.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable, Dict, List, Tuple

import ckptd.dcp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.training.data import batch_at, load_corpus
from examples.training.model import Gpt
from examples.training.train import SEED, set_deterministic

BATCH = 2


class Training:
    """Model, optimizer and step: what a checkpoint restores. DCP calls state_dict() and load_state_dict()."""

    def __init__(self, model: torch.nn.Module) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.corpus = load_corpus(1 << 20)
        self.step = 0

    def state_dict(self) -> Dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]

    def train_step(self) -> float:
        """Returns the mean loss of all ranks."""
        self.step += 1
        rank = dist.get_rank()
        torch.manual_seed(SEED + self.step * dist.get_world_size() + rank)  # Dropout depends on step and rank alone.
        tokens, targets = batch_at(self.corpus, self.step, rank, BATCH, self.model.context)
        loss = self.model(tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()


def train(
    root: str,
    make_model: Callable[[], torch.nn.Module],
    steps: int,
    save_every: int,
    after_save: Callable[[int], None] = lambda step: None,
    tell: Callable[[str], None] = lambda line: None,
) -> List[Tuple[int, float]]:
    """Resumes, trains up to a step, and saves. Returns (step, loss) of each step that it trained."""
    set_deterministic(SEED)
    ckptd.dcp.install(num_kept_ckpts=3)
    training = Training(make_model())
    last = ckptd.dcp.latest(root)
    if last:
        dcp.load({"training": training}, checkpoint_id=last)
        tell(f"goes on from {last}")
    losses, saved = [], None
    while training.step < steps:
        losses.append((training.step + 1, training.train_step()))
        tell(f"step {training.step}: loss {losses[-1][1]:.4f}")
        if training.step % save_every == 0:
            saved = dcp.async_save({"training": training}, checkpoint_id=f"{root}/step-{training.step}")
            after_save(training.step)
    if saved is not None:
        saved.result()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT with FSDP2, and saves it with DCP through ckptd.")
    parser.add_argument("--root", required=True, help="the folder for the checkpoints")
    parser.add_argument("--steps", type=int, default=100, help="the step at which training ends")
    parser.add_argument("--save_every", type=int, default=10, help="steps between saves")
    options = parser.parse_args()
    dist.init_process_group("gloo")

    def tell(line: str) -> None:
        if dist.get_rank() == 0:
            print(line, flush=True)

    train(options.root, Gpt, options.steps, options.save_every, tell=tell)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
