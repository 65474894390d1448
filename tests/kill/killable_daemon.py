"""A ckptd that a test kills at a system call of its choice."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, Optional

import kill_at_syscall

from harness import DaemonProgram, find_program

TIMEOUT = 30.0
POOL_BYTES = 16 << 20
CALL_NUMBERS = {name: number for number, name in kill_at_syscall.CALLS.items()}
find_program()  # Initialises sysconfig here: the first call must not come from several threads at once.


class Killer:
    """Says at which call one run of the daemon is killed, and tells what happened (see kill_at_syscall.Control)."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        size = ctypes.sizeof(kill_at_syscall.Control)
        with open(path, "w+b") as file:
            file.truncate(size)
            self.control = kill_at_syscall.Control.from_buffer(mmap.mmap(file.fileno(), size))

    def arm(self, kind: str = "", at: int = 0, after: bool = False, at_exchange: bool = False) -> Killer:
        """Counts calls from now on: those named `kind`, or all. Kills before, or `after`, the one numbered `at`."""
        self.control.kind = CALL_NUMBERS[kind] if kind else 0
        self.control.at, self.control.after, self.control.at_exchange = at, after, at_exchange
        self.control.armed = 1
        return self

    def disarm(self) -> None:
        self.control.armed = 0

    @property
    def hit(self) -> str:
        """The name of the call at which it killed the daemon; empty if it has not."""
        return kill_at_syscall.CALLS[self.control.hit] if self.control.hit else ""


class KillableDaemon(DaemonProgram):
    """One ckptd after another in one folder."""

    def __init__(self, folder: pathlib.Path, backend: str = "auto", **pool: Any) -> None:
        pool = {"bytes": POOL_BYTES, "segment_bytes": 2 << 20, "huge_pages": "PLAIN", **pool}
        super().__init__(
            folder,
            f"pool {{ {' '.join(f'{name}: {value}' for name, value in pool.items())} }}\n"
            f"io {{ backend: BACKEND_{backend.upper()} chunk_bytes: 65536 }}\n"
            "degraded_after_seconds: 1\nmetrics { port: -1 }\n",
        )
        self.pid = 0

    def start(self, killer: Optional[Killer] = None, must_serve: bool = True) -> None:
        """Returns when the daemon serves, or has ended, which only `must_serve=False` allows."""
        wrapper = []
        if killer is not None:
            # Without the installed packages, which makes the wrapper start faster.
            wrapper = [sys.executable, "-I", "-S", kill_at_syscall.__file__, str(killer.path)]
        serves = self.launch(wrapper=wrapper)
        assert serves or not must_serve, f"the daemon did not start: {self.log()[-3000:]}"
        assert self.process is not None
        self.pid = int(killer.control.pid) if killer is not None else self.process.pid

    def wait_after_hit(self) -> None:
        """Returns when a daemon that a killer has hit has ended."""
        assert self.process is not None
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.kill()  # The killer waits for the call's end, and io_uring_enter may also wait for completions.

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.running():
            self.kill()
