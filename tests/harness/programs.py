"""ckptd and ckptctl, as the wheel has installed them."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from collections.abc import Sequence
from typing import Any, Dict, Optional

import grpc
from ckptd.local_daemon import find_program
from ckptd.v1 import messages_pb2, service_pb2_grpc

from harness.waiting import TIMEOUT, readable

# Longer than a test may take, but on Linux in user mode, where each call on NFS takes its time.
_CKPTCTL_SECONDS = 600


class DaemonProgram:
    """A ckptd that a test configures, starts and ends itself. Its socket, state and log are in one folder."""

    def __init__(self, folder: pathlib.Path, configuration: str) -> None:
        """`configuration` is added to the paths, which are set here."""
        self.folder = folder
        self.socket = folder / "s"
        self.endpoint = f"unix:{self.socket}"
        self.log_path = folder / "log"
        self.configuration = folder / "ckptd.txtpb"
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.configuration.write_text(
            f'socket_path: "{self.socket}"\nstate_directory: "{folder / "state"}"\n{configuration}'
        )

    def arguments(self, *more: str) -> list[str]:
        return [find_program(), f"--config={self.configuration}", *more]

    def launch(
        self, *more: str, wrapper: Sequence[str] = (), environment: Optional[Dict[str, str]] = None
    ) -> bool:
        """Starts the daemon, behind the command `wrapper`. True once it serves; false if it ended before."""
        ready, theirs = os.pipe()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*wrapper, *self.arguments(f"--ready_fd={theirs}", *more)],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        os.close(theirs)
        with os.fdopen(ready, "rb") as pipe:
            assert readable(pipe), f"not ready after {TIMEOUT} s: {self.log()}"
            return pipe.read() == b"READY\n"  # The pipe closes when the daemon serves or ends.

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        """The exit status, when the process has ended."""
        assert self.process is not None
        return self.process.wait(TIMEOUT)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def close(self) -> None:
        """Kills the process if it runs, also while it is stopped."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(TIMEOUT)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def status(self) -> Any:
        """The daemon's status, asked without a session."""
        with grpc.insecure_channel(self.endpoint) as channel:
            stub = service_pb2_grpc.AdminStub(channel)
            return stub.GetStatus(messages_pb2.GetStatusRequest(), timeout=TIMEOUT, wait_for_ready=True)


def ckptctl(
    *arguments: str, endpoint: Optional[str] = None, check: bool = True, wrapper: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """`wrapper` is a command that runs it in its own place, as nsenter does."""
    command = [*wrapper, find_program("ckptctl")] + ([f"--endpoint={endpoint}"] if endpoint else []) + list(arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CKPTCTL_SECONDS)
    if check:
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def start_ckptctl(*arguments: str, endpoint: str) -> subprocess.Popen[str]:
    command = [find_program("ckptctl"), f"--endpoint={endpoint}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
