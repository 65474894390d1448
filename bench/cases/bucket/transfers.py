"""A checkpoint to the bucket and back, by ckptctl, by the daemon, and by other clients, in turns."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import ckptd

from bench.base import limits, machine
from bench.base.context import BenchContext
from bench.base.daemon import Daemon
from bench.base.training_state import training_state
from bench.cases.bucket.server import URL, Server

CLIENTS = {"crt": "s3transfer with awscrt", "threads": "s3transfer with boto3's threads"}
SECONDS = 600.0

Cost = Tuple[float, float]  # Seconds, and those of CPU.


class Transfer(NamedTuple):
    """One copy of a checkpoint."""

    seconds: float
    cpu: float  # Seconds of the client.
    server: float  # Seconds of CPU of the server.


def measure(
    context: BenchContext, server: Server, daemon: Daemon, client: ckptd.Client, size: int, turns: int
) -> Dict[Tuple[str, str], List[Transfer]]:
    """What each turn has measured, by the way, ("ckptctl", "daemon", and those of CLIENTS) and "upload" or "fetch".

    A first turn, which is not counted, warms up all of them. The order is another one in each turn.
    """
    found: Dict[Tuple[str, str], List[Transfer]] = {}
    for number in range(turns + 1):
        turn = _Turn(context.folder / f"turn{number}", server, daemon, client, size, number)
        ways = [*CLIENTS, "ckptctl", "daemon"]
        for what in ("upload", "fetch"):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                limits.wait_for_idle_disk(context.folder)
                before = server.cpu()
                seconds, cpu = turn.work(way, what)
                if number:
                    found.setdefault((way, what), []).append(Transfer(seconds, cpu, server.cpu() - before))
        shutil.rmtree(turn.folder)
        server.empty()
    return found


class _Turn:
    """One checkpoint, and a prefix of the bucket for each way."""

    def __init__(
        self,
        folder: pathlib.Path,
        server: Server,
        daemon: Daemon,
        client: ckptd.Client,
        size: int,
        number: int,
    ) -> None:
        self.folder = folder
        self._server, self._daemon, self._client = server, daemon, client
        self._state: Any = training_state(size)
        self._tag, self._prefix = "step_1", f"turn{number}"
        root = folder / "root"
        client.run(root).save(self._tag, files=self._state).wait("committed", timeout=SECONDS)
        self._path = root / self._tag
        self._names = [
            str(file.relative_to(self._path)) for file in sorted(self._path.rglob("*")) if file.is_file()
        ]

    def work(self, way: str, what: str) -> Cost:
        work: Dict[Tuple[str, str], Callable[[], Cost]] = {
            ("ckptctl", "upload"): lambda: self._tool(
                "upload", str(self._path), f"{URL}/{self._prefix}/tool"
            ),
            ("ckptctl", "fetch"): lambda: self._tool(
                "fetch", f"{URL}/{self._prefix}/tool/{self._tag}", str(self.folder / "fetched")
            ),
            ("daemon", "upload"): self._daemon_uploads,
            ("daemon", "fetch"): self._daemon_fetches,
        }
        return work[way, what]() if (way, what) in work else self._other(way, what)

    def _other(self, way: str, what: str) -> Cost:
        folder = self._path if what == "upload" else self.folder / way
        arguments = [way, what, self._server.endpoint, f"{self._prefix}/{way}", str(folder), *self._names]
        printed = _run(
            [sys.executable, "-m", "bench.cases.bucket.client_program", *arguments], dict(os.environ)
        )
        measured = json.loads(printed)
        return measured["seconds"], measured["cpu"]

    def _tool(self, *arguments: str) -> Cost:
        before, begin = _cpu_of_children(), time.perf_counter()
        _run([machine.program("ckptctl"), *arguments], self._server.environment)
        return time.perf_counter() - begin, _cpu_of_children() - before

    @property
    def _upload(self) -> ckptd.Upload:
        return ckptd.Upload(f"{URL}/{self._prefix}/daemon")

    def _daemon_uploads(self) -> Cost:
        run = self._client.run(self.folder / "uploaded", upload=self._upload)
        save = run.save(self._tag, files=self._state)
        save.wait("committed", timeout=SECONDS)
        before, begin = machine.cpu_seconds(self._daemon.pid), time.perf_counter()
        save.wait("uploaded", timeout=SECONDS)
        return time.perf_counter() - begin, machine.cpu_seconds(self._daemon.pid) - before

    def _daemon_fetches(self) -> Cost:
        run = self._client.run(self.folder / "resumed", upload=self._upload)
        before, begin = machine.cpu_seconds(self._daemon.pid), time.perf_counter()
        with run.resume(timeout=SECONDS) as checkpoint:
            if not checkpoint:
                raise SystemExit("the daemon has fetched nothing from the bucket")
        return time.perf_counter() - begin, machine.cpu_seconds(self._daemon.pid) - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(command: Sequence[str], environment: Dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise SystemExit(
            f"'{' '.join(command[:4])} ...' ended with status {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return done.stdout
