"""Trains a small GPT on several ranks, saves it with ckptd, and resumes where an earlier launch stopped.

From the top of the repository, on a node where ckptd runs:

    torchrun --nproc_per_node=2 -m examples.training.train --root=/data/ckpts --steps=100 --save_every=10

Run it again with more steps, and it continues. CheckpointedTraining is the part to copy into a training script.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List, Optional

import ckptd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from examples.training.data import batch_at, load_corpus
from examples.training.model import Gpt

SEED = 20
BATCH = 2


class Trainer:
    """Model, optimizer and data of one rank: everything that a checkpoint must restore."""

    def __init__(self, rank: int) -> None:
        set_deterministic(SEED)
        self.rank = rank
        self.model = Gpt()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.corpus = load_corpus()
        self.step = 0
        self._parallel: Optional[DistributedDataParallel] = None
        torch.manual_seed(SEED + 1 + rank)  # Each rank draws its own dropout.

    def files(self) -> Dict[str, Any]:
        """What this rank saves. A file name belongs to one rank."""
        return {
            f"model_{self.rank}.pt": self.model.state_dict(),
            f"optimizer_{self.rank}.pt": {
                "optimizer": self.optimizer.state_dict(),
                "generator": torch.get_rng_state(),
                "step": self.step,
            },
        }

    def load(self, checkpoint: Any) -> None:
        self.model.load_state_dict(checkpoint.load(f"model_{self.rank}.pt", map_location="cpu"))
        rest = checkpoint.load(f"optimizer_{self.rank}.pt", map_location="cpu")
        self.optimizer.load_state_dict(rest["optimizer"])
        torch.set_rng_state(rest["generator"])
        self.step = rest["step"]

    def train_step(self) -> float:
        """Returns the loss."""
        if self._parallel is None:
            self._parallel = DistributedDataParallel(self.model)
        self.step += 1
        tokens, targets = batch_at(self.corpus, self.step, self.rank, BATCH, self.model.context)
        loss = self._parallel(tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.item())


class CheckpointedTraining:
    """Resumes, trains, and saves every `save_every` steps. All ranks make the same calls."""

    def __init__(self, trainer: Trainer, run: Any, save_every: int) -> None:
        self.trainer = trainer
        self.run = run
        self.save_every = save_every
        self._saves: List[Any] = []

    def resume(self) -> None:
        """Loads the newest checkpoint that is whole on all ranks, if there is one."""
        self.run.restore(self.load)

    def load(self, checkpoint: Any) -> None:
        if checkpoint:  # False when nothing was saved yet.
            self.trainer.load(checkpoint)

    def train(self, last_step: int) -> None:
        while self.trainer.step < last_step:
            loss = self.train_step()
            if self.trainer.step % self.save_every == 0:
                self.save(loss)

    def train_step(self) -> float:
        return self.trainer.train_step()

    def save(self, loss: float) -> None:
        """Returns after one copy of the state; the daemon writes it while training continues."""
        files = self.trainer.files()
        if self.trainer.rank == 0:
            files["note.txt"] = b"Written by examples/training/train.py.\n"
        tag = f"step_{self.trainer.step}"
        try:
            self._saves.append(
                self.run.save(tag, step=self.trainer.step, files=files, metrics={"loss": loss})
            )
        except ckptd.CkptdError as error:  # On all ranks alike. Training can continue.
            print(f"{tag} was not saved: {error.reason}: {error}", flush=True)

    def wait_for_saves(self) -> None:
        """Waits until every save is committed or has failed."""
        for save in self._saves:
            try:
                save.wait("committed", timeout=60.0)
                self.save_ended(save.tag, None)
            except ckptd.CkptdError as error:
                self.save_ended(save.tag, error)

    def save_ended(self, tag: str, error: Optional[ckptd.CkptdError]) -> None:
        print(f"{tag}: {f'{error.reason}: {error}' if error else 'committed'}", flush=True)


def set_deterministic(seed: int) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT, and saves it with ckptd.")
    parser.add_argument("--root", required=True, help="the folder for the checkpoints")
    parser.add_argument("--endpoint", help="of the daemon; default: the node's")
    parser.add_argument("--steps", type=int, default=100, help="the step at which training ends")
    parser.add_argument("--save_every", type=int, default=10, help="steps between saves")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    run = ckptd.connect(options.endpoint).run(options.root, num_kept_ckpts=3)
    training = CheckpointedTraining(Trainer(dist.get_rank()), run, options.save_every)
    training.resume()
    training.train(options.steps)
    training.wait_for_saves()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
