"""Trains a small GPT with TorchTNT's AutoUnit, saves it through ckptd, and resumes in the middle of an epoch.

From the top of the repository:

    torchrun --nproc_per_node=2 -m examples.training.train_torchtnt --root=/data/ckpts --epochs=2

With TorchTNT's own DistributedCheckpointSaver in the line marked below it is what TorchTNT's documentation shows.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import torch
import torch.distributed as dist
from ckptd.torchtnt import CheckpointSaver as DistributedCheckpointSaver  # The line.
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.train import train
from torchtnt.utils.progress import Progress

from examples.training.data import batch_at, load_corpus
from examples.training.model import Gpt
from examples.training.train import SEED, set_deterministic

BATCH = 2
STEPS_IN_EPOCH = 50


class MyUnit(AutoUnit):
    """The model, with the loss of each step that it has trained."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module=module, device=torch.device("cpu"), strategy="ddp")
        self.losses: List[Tuple[int, float]] = []
        self.train_loss = float("inf")

    def compute_loss(self, state: Any, data: Any) -> Tuple[torch.Tensor, None]:
        step = self.train_progress.num_steps_completed + 1
        torch.manual_seed(SEED + step * dist.get_world_size() + dist.get_rank())  # Of dropout: by step and rank alone.
        return self.module(*data), None

    def configure_optimizers_and_lr_scheduler(self, module: torch.nn.Module) -> Tuple[torch.optim.Optimizer, None]:
        return torch.optim.AdamW(module.parameters(), lr=3e-4), None

    def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
        mean = results.loss.detach().clone()
        dist.all_reduce(mean)
        self.train_loss = float(mean) / dist.get_world_size()
        self.losses.append((self.train_progress.num_steps_completed + 1, self.train_loss))


class Batches:
    """The batches of an epoch that a unit has not trained on yet.

    They follow the unit's progress, because AutoUnit fetches one batch ahead: a data loader that saves its own
    position would leave that batch out after a restart.
    """

    def __init__(self, progress: Progress, context: int) -> None:
        self.corpus = load_corpus(1 << 20)
        self.progress = progress
        self.context = context

    def __iter__(self) -> Iterator[Any]:
        first = self.progress.num_steps_completed - self.progress.num_steps_completed_in_epoch
        for step in range(self.progress.num_steps_completed, first + STEPS_IN_EPOCH):
            yield batch_at(self.corpus, step + 1, dist.get_rank(), BATCH, self.context)


def train_epochs(
    root: str, make_model: Callable[[], torch.nn.Module], epochs: int, save_every: int, callbacks: Sequence[Any] = ()
) -> MyUnit:
    """Resumes, and trains up to a number of epochs."""
    set_deterministic(SEED)
    model = make_model()
    unit = MyUnit(model)
    dataloader = Batches(unit.train_progress, model.context)
    dcp = DistributedCheckpointSaver(
        dirpath=root,
        save_every_n_train_steps=save_every,
        save_every_n_epochs=1,
        keep_last_n_checkpoints=3,
        async_checkpoint=True,
    )
    # loads latest checkpoint, if it exists
    dcp.restore_from_latest(root, unit)
    train(unit, dataloader, max_epochs=epochs, callbacks=[dcp, *callbacks])
    return unit


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT with TorchTNT, and saves it through ckptd.")
    parser.add_argument("--root", required=True, help="the folder for the checkpoints")
    parser.add_argument("--epochs", type=int, default=2, help="the epoch at which training ends")
    parser.add_argument("--save_every", type=int, default=10, help="steps between saves")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    unit = train_epochs(options.root, Gpt, options.epochs, options.save_every)
    if dist.get_rank() == 0:
        for step, loss in unit.losses:
            print(f"step {step}: loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
