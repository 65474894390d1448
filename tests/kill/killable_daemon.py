"""A ckptd that a test kills at a system call of its choice."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
from typing import Any, Optional

from harness import DaemonProgram, Killer, find_program

TIMEOUT = 30.0
POOL_BYTES = 16 << 20
find_program()  # Initialises sysconfig here: the first call must not come from several threads at once.


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
        serves = self.launch(wrapper=killer.wrapper() if killer is not None else [])
        assert serves or not must_serve, f"the daemon did not start: {self.log()[-3000:]}"
        assert self.process is not None
        self.pid = killer.pid if killer is not None else self.process.pid

    def wait_after_hit(self) -> None:
        """Returns when a daemon that a killer has hit has ended."""
        assert self.process is not None
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.kill()  # The killer waits for the call's end, and io_uring_enter may also wait for completions.

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            # Without an id the daemon has not started; 0 would kill the group of this process. The wrapper's end ends it.
            os.kill(self.pid or self.process.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.running():
            self.kill()
