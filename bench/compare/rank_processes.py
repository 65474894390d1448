"""Starts the ranks of a job by forking a process that has imported everything, because imports take seconds."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
from multiprocessing.connection import Connection, wait
from typing import Any, Dict, List

from bench.base import machine
from bench.compare.rank import Plan, run

_PRELOADED = [
    "bench.compare.rank",
    "bench.contenders.dcp_contender",
    "torch._dynamo",
]  # AdamW imports the last one lazily.
_context = multiprocessing.get_context("forkserver")


class RankProcesses:
    """The ranks of a job, in a `with` block; at its end all of them are killed."""

    def __init__(self, plan: Plan) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # As launchers set it.
        _context.set_forkserver_preload(_PRELOADED)
        self._plan = plan
        port = machine.free_port()
        self._processes: List[Any] = []
        self._answers: List[Connection] = []
        for rank in range(plan.ranks):
            answer, sending = _context.Pipe(duplex=False)
            process = _context.Process(target=_work, args=(plan, rank, port, sending, self._output(rank)))
            process.start()
            sending.close()  # So that the pipe ends when the rank dies.
            self._processes.append(process)
            self._answers.append(answer)

    def __enter__(self) -> "RankProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def _output(self, rank: int) -> pathlib.Path:
        return self._plan.folder.with_suffix(f".rank{rank}.log")

    def pids(self) -> List[int]:
        return [process.pid for process in self._processes]

    def results(self, timeout: float) -> List[Dict[str, Any]]:
        """What each rank has measured. SystemExit as soon as one has failed, or none answers for `timeout` seconds."""
        results: Dict[int, Dict[str, Any]] = {}
        while len(results) < self._plan.ranks:
            waiting = [rank for rank in range(self._plan.ranks) if rank not in results]
            if not wait([self._answers[rank] for rank in waiting], timeout):
                raise self._failure(waiting[0], f"has not ended within {timeout:g} s")
            for rank in waiting:
                try:
                    if self._answers[rank].poll():
                        results[rank] = self._answers[rank].recv()
                except EOFError:
                    raise self._failure(rank, "has failed") from None
        return [results[rank] for rank in range(self._plan.ranks)]

    def _failure(self, rank: int, what: str) -> SystemExit:
        output = "\n".join(self._output(rank).read_text(errors="replace").splitlines()[-25:])
        return SystemExit(f"{self._plan.contender}: rank {rank} {what}; the end of its output:\n{output}")


def _work(plan: Plan, rank: int, port: int, answer: Connection, output: pathlib.Path) -> None:
    with open(output, "wb") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(plan.ranks),
        LOCAL_WORLD_SIZE=str(plan.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    answer.send(run(plan, rank))
    for child in multiprocessing.active_children():  # DCP's writer would outlive this process.
        child.kill()
        child.join()
    os._exit(0)  # DCP's process executor cannot be shut down cleanly in every state.
