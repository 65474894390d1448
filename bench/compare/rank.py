"""One rank of a job with one contender: saves during training steps, saves without them, and restores."""

from __future__ import annotations

import copy
import dataclasses
import os
import pathlib
import time
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist

from bench.base import limits, save_cost
from bench.base.tensors import digest, tensors_of, total_bytes
from bench.compare.processes import cpu_of_trees
from bench.compare.workloads import WORKLOADS, Workload
from bench.contenders import catalog
from bench.contenders.contender import Contender


@dataclasses.dataclass(frozen=True)
class Plan:
    """The same for every rank of a job."""

    contender: str
    workload: str
    ranks: int
    quick: bool  # Use small states.
    folder: pathlib.Path  # For checkpoints.
    endpoint: str  # Of ckptd's daemon; empty for other contenders.
    daemon: int  # The daemon's process id; 0 for other contenders.
    warm: int  # Number of saves during steps, after the first one.
    alone: int  # Number of saves without steps.


class Rank:
    def __init__(self, plan: Plan, rank: int) -> None:
        dist.init_process_group("gloo")
        self._plan = plan
        self._rank = rank
        self._workload: Workload = WORKLOADS[plan.workload](rank, plan.quick)
        self._contender: Contender = catalog.make(plan.contender, plan.folder, plan.endpoint)
        self._tag = ""

    def measure(self) -> Dict[str, Any]:
        """Returns seconds and bytes. `ready` and `saved` are times of time.perf_counter()."""
        copies = self._copies()
        for _ in range(5):
            self._step()
        ready = time.perf_counter()
        saves = [self._save_during_steps(number) for number in range(self._plan.warm + 1)]
        quiet = [seconds for save in saves for seconds in save["quiet"]]
        alone = [self._save_alone(number) for number in range(self._plan.alone)]
        saved = time.perf_counter()
        restores = self._restore()
        one = self._restore_on_one_rank()
        copies += self._copies()
        self._contender.close()
        return {
            "unsynced": self._contender.unsynced,
            "bytes": total_bytes(self._workload.files()),
            "copies": copies,
            "saves": [
                {
                    **{key: save[key] for key in ("stall", "done", "durable")},
                    "lost": save_cost.lost_seconds(save, quiet),
                }
                for save in saves
            ],
            "cpu": alone,
            "restores": restores,
            "one": one,
            "ready": ready,
            "saved": saved,
        }

    def _step(self) -> float:
        """The seconds of a step. All ranks wait for the slowest, as in an exchange of gradients."""
        start = time.perf_counter()
        self._workload.steps()
        dist.all_reduce(torch.zeros(1))
        return time.perf_counter() - start

    def _copies(self) -> List[limits.Turn]:
        """Copies by all ranks concurrently. Frees the target."""
        copy = limits.MemoryCopy(tensors_of(self._workload.files()), threads=1)
        return [copy(dist.barrier) for _ in range(3)]

    def _save_during_steps(self, number: int) -> Dict[str, Any]:
        tag = self._prepare(f"steps_{number}")
        save = save_cost.measure(
            self._step,
            self._workload.quiet_steps,
            lambda: self._contender.save(tag, self._workload.files()),
            lambda: self._contender.make_durable(tag),
        )
        self._remove_last(tag)
        return save

    def _save_alone(self, number: int) -> float:
        """The CPU seconds of this rank's processes, and on rank 0 also of the daemon."""
        tag = self._prepare(f"alone_{number}")
        processes = [os.getpid()]
        if self._plan.daemon and self._rank == 0:
            processes.append(self._plan.daemon)
        before = cpu_of_trees(processes)
        self._contender.save(tag, self._workload.files()).result()
        self._contender.make_durable(tag)
        dist.barrier()
        seconds = cpu_of_trees(processes) - before
        self._remove_last(tag)
        return seconds

    def _prepare(self, tag: str) -> str:
        self._workload.change()
        limits.wait_for_idle_disk(self._plan.folder)
        dist.barrier()
        return tag

    def _remove_last(self, tag: str) -> None:
        dist.barrier()
        if self._tag and self._rank == 0:
            self._contender.remove(self._tag)
        self._tag = tag

    def _restore(self) -> List[float]:
        """The seconds of two restores of the last checkpoint: from the disk, then from memory if the contender can."""
        files = self._workload.files()
        saved = digest(files)
        seconds = []
        for cold in (True, False):
            with torch.no_grad():
                for tensor in tensors_of(files):
                    tensor.zero_()
            if cold:
                limits.drop_from_page_cache(self._contender.written(self._tag))
            dist.barrier()
            start = time.perf_counter()
            (self._contender.restore_cold if cold else self._contender.restore)(self._tag, files)
            seconds.append(time.perf_counter() - start)
            if digest(files) != saved:
                raise SystemExit(f"{self._plan.contender} restored other bytes than it had saved")
            dist.barrier()
        return seconds

    def _restore_on_one_rank(self) -> Optional[float]:
        """The seconds in which rank 0 restores the state of all ranks, from memory; None elsewhere, or if it cannot."""
        files = self._workload.files()
        saved = digest(files)
        names: List[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(names, list(files))
        seconds = None
        if self._rank == 0 and self._contender.restores_on_other_ranks:
            targets = [dict(zip(each, _emptied(files).values())) for each in names]
            start = time.perf_counter()
            self._contender.restore_all(self._tag, targets)
            seconds = time.perf_counter() - start
            if digest(targets[0]) != saved:
                raise SystemExit(f"{self._plan.contender} restored other bytes on one rank than all had saved")
        dist.barrier()
        return seconds


def _emptied(files: Any) -> Any:
    """A copy whose tensors are zero."""
    copied = copy.deepcopy(files)
    for tensor in tensors_of(copied):
        tensor.detach().zero_()
    return copied


def run(plan: Plan, rank: int) -> Dict[str, Any]:
    return Rank(plan, rank).measure()
