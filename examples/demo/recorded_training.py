"""One rank of the training job, with a journal of what happened. bench/base/job.py starts it.

The demo checks the promises by the journal: losses, hashes of states, and how each save ended.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time
from typing import Any, Optional

import ckptd
import torch.distributed as dist

from bench.base.job import Journal
from bench.base.tensors import digest
from examples.training.train import CheckpointedTraining, Trainer


class RecordedTraining(CheckpointedTraining):
    """Without a run (None) it trains and saves nothing, as the reference of an uninterrupted job."""

    def __init__(self, trainer: Trainer, run: Any, save_every: int, journal: Journal) -> None:
        super().__init__(trainer, run, save_every)
        self._journal = journal

    def load(self, checkpoint: Any) -> None:
        super().load(checkpoint)
        if checkpoint:
            self._write_state("resumed", tag=checkpoint.tag)

    def train_step(self) -> float:
        start = time.perf_counter()
        loss = super().train_step()
        self._journal.write(
            "step", step=self.trainer.step, loss=loss.hex(), seconds=time.perf_counter() - start
        )
        return loss

    def save(self, loss: float) -> None:
        if self.run is None:
            self._write_state("hash")
            return
        self._write_state("saving", tag=f"step_{self.trainer.step}")
        super().save(loss)

    def save_ended(self, tag: str, error: Optional[ckptd.CkptdError]) -> None:
        super().save_ended(tag, error)
        if error is None:
            self._journal.write("committed", tag=tag)
        else:
            self._journal.write(
                "failed", tag=tag, error=type(error).__name__, reason=error.reason, text=str(error)
            )

    def wait_for_upload(self) -> None:
        """Waits until the bucket has the last save."""
        self._saves[-1].wait("uploaded", timeout=300.0)
        self._journal.write("uploaded", tag=self._saves[-1].tag)

    def _write_state(self, event: str, **fields: Any) -> None:
        self._journal.write(event, step=self.trainer.step, hash=digest(self.trainer.files()), **fields)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=pathlib.Path, required=True)
    parser.add_argument("--root", help="the folder for the checkpoints; without it none are made")
    parser.add_argument("--endpoint", help="of the daemon")
    parser.add_argument("--steps", type=int, required=True, help="how many to train, from where it resumes")
    parser.add_argument("--save_every", type=int, required=True)
    parser.add_argument("--upload", help="the bucket to which the daemon uploads each second checkpoint")
    options = parser.parse_args()

    journal = Journal(options.journal)
    dist.init_process_group("gloo")
    trainer = Trainer(int(os.environ["RANK"]))
    run = None
    if options.root:
        upload = ckptd.Upload(options.upload, every=2) if options.upload else None
        run = ckptd.connect(options.endpoint).run(options.root, num_kept_ckpts=3, upload=upload)
    training = RecordedTraining(trainer, run, options.save_every, journal)
    if run is not None:
        training.resume()
    training.train(trainer.step + options.steps)
    training.wait_for_saves()
    if options.upload:
        training.wait_for_upload()
    journal.write("end", step=trainer.step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
