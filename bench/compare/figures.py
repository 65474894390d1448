"""The figures of a contender, over all rounds. A checkpoint is as slow as its slowest rank."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any, Dict, List

from bench.base import limits
from bench.base.fio import Rates

FIGURES = {  # Meaning, unit.
    "first": "stall of a process's first save, s",
    "stall": "stall of later saves, s",
    "done": "until the library reports the end, s",
    "durable": "until everything is synced, s",
    "lost": "training time lost: stall, and slower steps until durable, s",
    "cold": "restore from the disk, s",
    "warm": "restore again, s",
    "one": "one rank restores what all have saved, where the library can, s",
    "cpu": "CPU of all processes, s/GB",
    "private": "the processes' own memory above the state, states",
    "shared": "shared memory (staging buffers; ckptd's pool), states",
}


@dataclasses.dataclass
class Figures:
    """The values of each of FIGURES, one for each save, restore or job."""

    values: Dict[str, List[float]] = dataclasses.field(default_factory=lambda: {name: [] for name in FIGURES})
    copies: List[limits.Turn] = dataclasses.field(default_factory=list)
    size: int = 0  # Bytes of a checkpoint, of all ranks together.
    rounds: int = 1
    unsynced: str = ""  # What is not synced when the library reports the end.

    def add(self, ranks: List[Dict[str, Any]], private: int, shared: int) -> None:
        """Adds a job: what each rank has measured, and the memory of all processes in bytes."""
        self.unsynced = ranks[0]["unsynced"]
        self.size = sum(rank["bytes"] for rank in ranks)
        first, *later = (
            {key: max(save[key] for save in saves) for key in saves[0]}
            for saves in zip(*(rank["saves"] for rank in ranks))
        )
        self.values["first"].append(first["stall"])
        for save in later:
            for name in ("stall", "done", "durable", "lost"):
                self.values[name].append(save[name])
        cold, warm = (max(seconds) for seconds in zip(*(rank["restores"] for rank in ranks)))
        self.values["cold"].append(cold)
        self.values["warm"].append(warm)
        if ranks[0]["one"] is not None:
            self.values["one"].append(ranks[0]["one"])
        self.values["cpu"] += [sum(cpu) / self.size * 1e9 for cpu in zip(*(rank["cpu"] for rank in ranks))]
        self.values["private"].append(private / self.size)
        self.values["shared"].append(shared / self.size)
        self.copies += [limits.slowest_of(turns) for turns in zip(*(rank["copies"] for rank in ranks))]

    def extend(self, other: "Figures") -> None:
        for name, values in other.values.items():
            self.values[name] += values
        self.copies += other.copies
        self.rounds += other.rounds

    def __getitem__(self, name: str) -> float:
        """The median of a figure."""
        return statistics.median(self.values[name])


@dataclasses.dataclass
class Comparison:
    """The figures of all contenders for one workload."""

    workload: str
    ranks: int
    figures: Dict[str, Figures]  # By contender.
    fio_rates: Dict[str, List[float]]  # As Fio.rates.
    fio_pages: str  # Of fio's buffers, in words.

    @property
    def fio(self) -> float:
        """The bytes per second of fio's best rate."""
        return self._disk.best()

    @property
    def fio_description(self) -> str:
        return self._disk.description()

    @property
    def _disk(self) -> Rates:
        return Rates(self.fio_pages, [self.fio_rates])

    def add(self, other: "Comparison") -> None:
        """Adds another round of the same workload."""
        for name, figures in other.figures.items():
            self.figures[name].extend(figures)
        for combination, rates in other.fio_rates.items():
            self.fio_rates.setdefault(combination, []).extend(rates)

    @property
    def size(self) -> int:
        return next(iter(self.figures.values())).size

    @property
    def copy(self) -> limits.BestCopy:
        """A copy of a rank's bytes by the fastest loop, by one thread of each rank, all ranks concurrently, into shared pages as
        the pool of ckptd's daemon has them.
        """
        return limits.best_copy([turn for figures in self.figures.values() for turn in figures.copies])
