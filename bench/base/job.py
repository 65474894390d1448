"""A job: starts its ranks as a launcher does, and reads the journals that they write."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Sequence

from bench.base import machine


class Journal:
    """Events of one rank in a file, one JSON object a line."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = open(path, "a", buffering=1)

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


class Job:
    """The ranks of one module, each with a journal (its option --journal) and an output file in `folder`.

    Used in a `with` block; at its end all ranks are killed.
    """

    def __init__(
        self, module: str, folder: pathlib.Path, name: str, arguments: Sequence[str], ranks: int
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
        """Sends SIGKILL to every rank that runs."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Waits until every rank has ended with status 0. SystemExit names one that has not, with the end of its output."""
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
        """SystemExit if a rank has ended with an error."""
        for rank, process in enumerate(self._processes):
            if process.poll() not in (None, 0):
                raise SystemExit(
                    f"{self.name}: rank {rank} ended with {process.returncode}{self._tail(rank)}"
                )

    def _tail(self, rank: int) -> str:
        lines = self._output(rank).read_text(errors="replace").splitlines()[-25:]
        return "; the end of its output:\n" + "\n".join(lines)

    def events(self, rank: int, event: str) -> List[Dict[str, Any]]:
        """The events of this kind in a rank's journal, oldest first, without a last line that SIGKILL cut."""
        journal = self._journal(rank)
        lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]
