"""What the file systems have in common."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import List, Protocol

from node_namespaces import Namespaces

from harness import TIMEOUT

# tools/setup unpacks it. A sandbox has it in /usr.
PROGRAMS = pathlib.Path(sys.prefix, "debian/shared-file-systems")


class SharedFileSystem(Protocol):
    """A server, and clients that mount what it serves. All of it ends with the sandbox."""

    def serve(self, server: Namespaces, address: str, folder: pathlib.Path) -> None:
        """Starts the server in its namespaces, at this address. Also the test sees `folder` then, without a stale cache.
        What the server needs is beside it.
        """

    def mount(self, node: Namespaces, name: str, folder: pathlib.Path) -> None:
        """Mounts what is served at `folder` on a node, as an administrator does who knows nothing of ckptd."""


def run(wrapper: Sequence[str], *command: str) -> str:
    """The output of a command in its place. The error of one that fails has its output."""
    done = subprocess.run(
        [*wrapper, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def start(wrapper: Sequence[str], log: pathlib.Path, *command: str) -> None:
    """Starts a server, or a client, which runs until the sandbox ends."""
    arguments: List[str] = [*wrapper, *command]
    with open(log, "ab") as output:
        subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def succeeds(wrapper: Sequence[str], *command: str) -> bool:
    """For conditions that are waited for."""
    done = subprocess.run([*wrapper, *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT)
    return done.returncode == 0
