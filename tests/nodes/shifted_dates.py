"""Nodes on this host whose dates are apart (shifted_date.c)."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Sequence

from places import OneHost

_SOURCE = pathlib.Path(__file__).with_name("shifted_date.c")


def why_no_dates() -> str:
    """Why the dates of nodes cannot be shifted here; empty if they can."""
    machine = os.uname().machine
    return "" if machine == "x86_64" else f"dates are shifted on x86_64 only, not on {machine}"


class DatesApart(OneHost):
    """The date of each node, and of its ranks, is so many seconds from this machine's, and so from etcd's."""

    def __init__(self, folder: pathlib.Path, shifts: Sequence[int]) -> None:
        super().__init__()
        self._shifts = shifts
        self._program = folder / "shifted_date"
        command = ["cc", "-std=gnu11", "-O2", "-o", str(self._program), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def node_wrapper(self, node: int, shared: pathlib.Path) -> Sequence[str]:
        return [str(self._program), str(self._shifts[node])]
