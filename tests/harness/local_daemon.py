"""A private daemon, started by the Python package."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import ckptd

from harness.waiting import alive, until


class Daemon:
    """A private daemon that the test may kill and start again."""

    def __init__(self, folder: str, **options: Any) -> None:
        self.folder = folder
        self.options = {"pool_bytes": 256 << 20, "idle_timeout": 60, **options}
        self.local = ckptd.LocalDaemon(folder, **self.options).start()
        self.endpoint = self.local.endpoint
        self.pid = self.local.pid

    def status(self) -> Any:
        return self.local._keeper.status()

    def run_status(self, root: str) -> Any:
        root = os.path.realpath(root)
        for run in self.status().runs:
            if os.path.realpath(run.path) == root:
                return run
        raise AssertionError(f"the daemon knows no run in {root}")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not alive(self.pid), "the daemon's end")

    def restart(self) -> None:
        """Ends the daemon and starts the next one, which has nothing in memory.

        Without the wait a busy machine's next one would join the daemon, which has not heard yet that nobody needs it.
        """
        self.local.stop()
        self._end()
        until(lambda: not alive(self.pid), "the daemon's end")
        self.local = ckptd.LocalDaemon(self.folder, **self.options).start()
        self.pid = self.local.pid

    def _end(self) -> None:
        """Asks the daemon to end although trainers are connected."""
        if alive(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def log(self) -> str:
        with open(os.path.join(self.folder, "ckptd.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self) -> None:
        pid = self.pid
        with contextlib.suppress(ckptd.CkptdError):
            self.local.stop()
        self._end()
        with contextlib.suppress(AssertionError):
            until(lambda: not alive(pid), "the daemon's end", 20)
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def tags(root: str) -> list[str]:
    """The committed checkpoints of a root, newest first, read without a daemon."""
    return [info.tag for info in ckptd.open_root(root).list()]
