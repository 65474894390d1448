"""A network namespace and a mount namespace of a node's own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
from typing import Iterator

from harness import TIMEOUT


class Namespaces:
    """All that runs in them, and with it all that is mounted, ends with them."""

    def __init__(self) -> None:
        hold = ["sh", "-c", "ip link set lo up && echo ready && exec cat"]
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation=private", *hold],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None and self.holder.stdout.readline() == b"ready\n"
        self.pid = self.holder.pid
        self.wrapper = ["nsenter", f"--target={self.pid}", "--net", "--mount"]
        # A program that mounts for all who are outside, but over this network.
        self.network_wrapper = ["nsenter", f"--target={self.pid}", "--net"]

    def run(self, *command: str) -> None:
        subprocess.run([*self.wrapper, *command], check=True, timeout=TIMEOUT)

    def kill(self) -> None:
        """Ends what runs here; the namespaces stay."""
        for pid in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.holder.communicate(timeout=TIMEOUT)  # Closes its stdin, and waits.

    def _others(self) -> Iterator[int]:
        """What else runs here, such as the client of a file system."""
        network = os.readlink(f"/proc/{self.pid}/ns/net")
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            with contextlib.suppress(OSError):
                if pid != self.pid and os.readlink(path / "ns/net") == network:
                    yield pid
