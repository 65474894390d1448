"""Starts the ranks of a job as a launcher would, and ends them as a node's failure would."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Sequence

import machine

RANKS = 2
TOOLS = pathlib.Path(__file__).resolve().parent.parent


class Job:
    """The ranks of one module, each with its journal and output in `folder`. Left, all of them are dead."""

    def __init__(
        self, module: str, folder: pathlib.Path, name: str, arguments: Sequence[str], ranks: int = RANKS
    ) -> None:
        self.name = name
        self._folder = folder
        port = machine.free_port()
        self._processes: List["subprocess.Popen[bytes]"] = []
        for rank in range(ranks):
            environment = dict(
                os.environ,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
            )
            command = [sys.executable, "-m", module, "--journal", str(self._journal(rank)), *arguments]
            with open(self._output(rank), "wb") as output:
                self._processes.append(
                    subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in self._processes:
            process.wait()

    def _journal(self, rank: int) -> pathlib.Path:
        return self._folder / f"{self.name}.rank{rank}.jsonl"

    def _output(self, rank: int) -> pathlib.Path:
        return self._folder / f"{self.name}.rank{rank}.log"

    def kill(self) -> None:
        """SIGKILL to every rank that lives. It runs no instruction of its own after this."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)

    def alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def wait(self, timeout: float) -> None:
        """Until every rank has ended well. A SystemExit says which did not, and what it printed last."""
        deadline = time.monotonic() + timeout
        for rank, process in enumerate(self._processes):
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SystemExit(
                    f"{self.name}: rank {rank} has not ended after {timeout:g} s{self._tail(rank)}"
                ) from None
            if code != 0:
                raise SystemExit(f"{self.name}: rank {rank} ended with {code}{self._tail(rank)}")

    def check(self) -> None:
        """A SystemExit when a rank has ended with an error."""
        for rank, process in enumerate(self._processes):
            if process.poll() not in (None, 0):
                raise SystemExit(
                    f"{self.name}: rank {rank} ended with {process.returncode}{self._tail(rank)}"
                )

    def _tail(self, rank: int) -> str:
        lines = self._output(rank).read_text(errors="replace").splitlines()[-25:]
        return "; the end of its output:\n" + "\n".join(lines)

    def events(self, rank: int, event: str) -> List[Dict[str, Any]]:
        """What a rank wrote into its journal, oldest first; a last line that SIGKILL cut is left out."""
        journal = self._journal(rank)
        lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]
