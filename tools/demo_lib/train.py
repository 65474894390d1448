"""One rank of the training job. Started by launch.py with RANK and the like in its environment.

It is what a user writes: build, resume, loop, save. What it saw goes to a journal, one JSON object a line, by
which the claims are judged from outside.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from typing import Any, Dict, List, Optional, Tuple

import ckptd
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from demo_lib.model import Gpt, batch_at, digest, load_corpus, set_deterministic

SEED = 20
BATCH = 2


class Journal:
    def __init__(self, path: pathlib.Path) -> None:
        self._file = open(path, "a", buffering=1)

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


class Trainer:
    """Model, optimizer and data of one rank; the whole of what a checkpoint must bring back."""

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
        return {
            f"model_{self.rank}.pt": self.model.state_dict(),
            f"optimizer_{self.rank}.pt": {
                "optimizer": self.optimizer.state_dict(),
                "generator": torch.get_rng_state(),
                "step": self.step,
            },
        }

    def restore(self, model: Dict[str, Any], rest: Dict[str, Any]) -> None:
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(rest["optimizer"])
        torch.set_rng_state(rest["generator"])
        self.step = rest["step"]

    def train_step(self) -> float:
        if self._parallel is None:
            self._parallel = DistributedDataParallel(self.model)
        self.step += 1
        tokens, targets = batch_at(self.corpus, self.step, self.rank, BATCH, self.model.context)
        loss = self._parallel(tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.item())


def resume(run: Any, trainer: Trainer, journal: Journal) -> None:
    with run.resume(timeout=60) as checkpoint:
        if not checkpoint:
            return
        model = checkpoint.load(f"model_{trainer.rank}.pt", map_location="cpu")
        rest = checkpoint.load(f"optimizer_{trainer.rank}.pt", map_location="cpu")
        trainer.restore(model, rest)
        journal.write("resumed", tag=checkpoint.tag, step=checkpoint.step, hash=digest(trainer.files()))


def save(run: Any, trainer: Trainer, journal: Journal, loss: float) -> Tuple[str, Any]:
    tag = f"step_{trainer.step}"
    files = trainer.files()
    if trainer.rank == 0:
        files["note.txt"] = b"Written by tools/demo.\n"
    journal.write("saving", tag=tag, step=trainer.step, hash=digest(trainer.files()))
    start = time.perf_counter()
    try:
        save = run.save(tag, step=trainer.step, files=files, metrics={"loss": loss})
    except ckptd.CkptdError as error:
        journal.write("refused", tag=tag, error=type(error).__name__, text=str(error))
        return tag, None
    journal.write("staged", tag=tag, stall=time.perf_counter() - start)
    return tag, save


def settle(saves: List[Tuple[str, Any]], journal: Journal) -> None:
    """How each save ended, as this rank hears it."""
    for tag, save in saves:
        try:
            save.wait("committed", timeout=60.0)
            journal.write("committed", tag=tag)
        except ckptd.CkptdError as error:
            journal.write("failed", tag=tag, error=type(error).__name__, reason=error.reason, text=str(error))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--root", help="where checkpoints go; without it none are made")
    parser.add_argument("--endpoint", help="of the daemon")
    parser.add_argument("--steps", type=int, required=True, help="how many, counted from where it resumes")
    parser.add_argument("--save_every", type=int, required=True)
    options = parser.parse_args()

    rank = int(os.environ["RANK"])
    journal = Journal(options.journal)
    dist.init_process_group("gloo")
    trainer = Trainer(rank)
    run: Any = None
    saves: List[Tuple[str, Any]] = []
    if options.root:
        run = ckptd.connect(options.endpoint).run(options.root, num_kept_ckpts=3)
        resume(run, trainer, journal)
    end = trainer.step + options.steps
    while trainer.step < end:
        start = time.perf_counter()
        loss = trainer.train_step()
        journal.write("step", step=trainer.step, loss=loss.hex(), seconds=time.perf_counter() - start)
        if trainer.step % options.save_every == 0:
            if run is None:
                journal.write("hash", step=trainer.step, hash=digest(trainer.files()))
            else:
                tag, handle = save(run, trainer, journal, loss)
                if handle is not None:
                    saves.append((tag, handle))
    settle(saves, journal)
    journal.write("end", step=trainer.step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
