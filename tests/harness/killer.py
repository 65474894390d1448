"""Kills a program at a system call that a test chooses, or holds one of its threads there (kill_at_syscall.py)."""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib
import sys
from typing import List

from harness import kill_at_syscall
from harness.waiting import until


def _encoded(pattern: str) -> bytes:
    encoded = os.fsencode(pattern)
    assert len(encoded) < kill_at_syscall.MAX_PATTERN_BYTES, f"a pattern of {len(encoded)} bytes: {pattern}"
    return encoded


class Killer:
    """Says at which call one run of a program is killed, and tells what happened (see kill_at_syscall.Control)."""

    def __init__(self, path: pathlib.Path) -> None:
        """`path`: a file that this makes, for both sides."""
        self.path = path
        size = ctypes.sizeof(kill_at_syscall.Control)
        with open(path, "x+b") as file:
            file.truncate(size)
            self.control = kill_at_syscall.Control.from_buffer(mmap.mmap(file.fileno(), size))

    def wrapper(self) -> List[str]:
        """The command that runs the program."""
        # Without the installed packages, which makes the wrapper start faster.
        return [sys.executable, "-I", "-S", kill_at_syscall.__file__, str(self.path)]

    def arm(
        self, pattern: str = kill_at_syscall.CHANGES, at: int = 1, after: bool = False, since: str = ""
    ) -> Killer:
        """Counts from now on, or from a call that matches `since`, the calls whose descriptions
        (kill_at_syscall.describe) match the pattern. Kills before, or `after`, the one numbered `at`.
        """
        self.disarm()
        self.control.hold = 0
        return self._arm(pattern, at, after, since)

    def arm_to_hold(self, pattern: str, at: int = 1, since: str = "") -> Killer:
        """Holds the thread that is about to make this call, as a file system does that hangs, until `let_go`."""
        self.disarm()
        self.control.hold = 1
        return self._arm(pattern, at, False, since)

    def let_go(self) -> None:
        self.control.hold = 0

    def _arm(self, pattern: str, at: int, after: bool, since: str) -> Killer:
        self.control.pattern, self.control.since = _encoded(pattern), _encoded(since)
        self.control.at, self.control.after, self.control.count, self.control.hit = at, after, 0, 0
        self.control.armed = 1
        return self

    def disarm(self) -> None:
        """From the return on there is no hit any more; `hit` tells whether there was one."""
        self.control.armed = 0
        # The other side may have seen it armed, and be about to kill the program.
        until(lambda: not self.control.judging, "the killer to have compared the call at which the program stands")

    @property
    def pid(self) -> int:
        """The program's process id, once it runs."""
        return int(self.control.pid)

    @property
    def hit(self) -> str:
        """The description of the call at which the program was killed or held; empty if it was not."""
        return os.fsdecode(self.control.call) if self.control.hit else ""
