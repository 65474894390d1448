"""The ranks of a job whose processes the test drives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from harness.trainer import Trainer, TrainerError


class Ranks:
    """Processes, by rank, that run the same code at once."""

    def __init__(self, processes: Sequence[Trainer]) -> None:
        self.processes = processes

    def do(self, code: str, timeout: float = 60) -> list[Any]:
        """Runs code on all ranks; returns their values."""
        outcomes = self.outcomes(code, timeout)
        for outcome in outcomes:
            if isinstance(outcome, TrainerError):
                raise outcome
        return outcomes

    def fail(self, code: str, timeout: float = 60) -> list[TrainerError]:
        """Runs code that must raise on all ranks; returns the errors."""
        outcomes = self.outcomes(code, timeout)
        assert all(isinstance(outcome, TrainerError) for outcome in outcomes), outcomes
        return outcomes

    def outcomes(self, code: str, timeout: float = 60) -> list[Any]:
        """Hears of every rank, so that the processes can be used by the next test whatever happens here."""
        for process in self.processes:
            process.start(code)
        outcomes: list[Any] = []
        for process in self.processes:
            try:
                outcomes.append(process.result(timeout))
            except TrainerError as error:
                outcomes.append(error)
        return outcomes


class LaunchedRanks(Ranks):
    """The ranks of one launch: the first processes of all, in a process group of their own.

    The processes have imported a module `states` with join(store, rank, world_size).
    """

    _numbers = itertools.count()

    def __init__(self, processes: Sequence[Trainer], folder: str, world_size: int) -> None:
        super().__init__(processes[:world_size])
        store = os.path.join(folder, f"launch-{next(self._numbers)}")
        for rank, process in enumerate(self.processes):
            process.start(f"states.join({store!r}, {rank}, {world_size})")
        for process in self.processes:
            process.result(60)
