"""A daemon for a measurement: the installed program with a configuration of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from typing import Any, Dict, Optional, Tuple

import grpc
from ckptd.v1 import messages_pb2, service_pb2_grpc

from bench.base import machine


class Daemon:
    """Runs within a `with` block, and ends by SIGTERM."""

    def __init__(
        self,
        folder: pathlib.Path,
        pool_bytes: int,
        resident: bool = False,
        config: str = "",
        environment: Optional[Dict[str, str]] = None,
    ) -> None:
        """resident: keep committed checkpoints in memory. config: more of its configuration. environment: of its process.
        None: this one's
        """
        self._environment = environment
        self.folder = folder
        self._socket = folder / "ckptd.sock"
        self.endpoint = f"unix:{self._socket}"
        self._log = folder / "ckptd.log"
        self._config = folder / "ckptd.txtpb"
        (folder / "state").mkdir(exist_ok=True)
        self._config.write_text(
            f'socket_path: "{self._socket}"\nstate_directory: "{folder / "state"}"\n'
            f"pool {{ bytes: {pool_bytes} {'' if resident else 'resident_bytes: 0'} }}\nmetrics {{ port: -1 }}\n"
            f'log {{ level: "info" format: "json" }}\n{config}\n'
        )

    def __enter__(self) -> "Daemon":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the daemon serves."""
        reading, writing = os.pipe()
        command = [machine.program("ckptd"), f"--config={self._config}", f"--ready_fd={writing}"]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=[writing], env=self._environment)
        os.close(writing)
        with os.fdopen(reading, "rb") as ready:
            if not ready.read():  # Blocks until the daemon closes it.
                raise SystemExit(f"ckptd ended before it served: {self._log.read_text()[-2000:]}")
        self.pid = self._process.pid
        self._channel = grpc.insecure_channel(self.endpoint)
        self._admin = service_pb2_grpc.AdminStub(self._channel)

    def stop(self) -> None:
        self._channel.close()
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
            return
        self._process.kill()
        self._process.wait()
        raise SystemExit("ckptd has not ended within 60 s after SIGTERM")

    def restart(self) -> None:
        self.stop()
        self.start()

    def status(self) -> Any:
        return self._admin.GetStatus(messages_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True)

    def wait_for_pool(self) -> str:
        """Waits until the whole pool is faulted in and unused. Returns the kind of its pages."""
        machine.wait_until(
            lambda: self.status().pool.ready_bytes >= self.status().pool.total_bytes,
            "the pool to be faulted in",
            120,
        )
        return str(self.status().pool.pages)

    def wait_until_idle(self) -> None:
        """Waits until no save is in flight and trash is empty."""

        def idle() -> bool:
            return all(not run.in_flight and run.trash_bytes == 0 for run in self.status().runs)

        machine.wait_until(idle, "the daemon to be idle", 120)

    def saves(self) -> Dict[Tuple[str, str], Dict[str, Any]]:
        """The log line of each save that has ended, by (root, tag)."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return {(line["root"], line["tag"]): line for line in lines if "committed_ms" in line}
