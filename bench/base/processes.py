"""The processes of a run: found by a variable of their environment, and ended with their shared memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import time
from typing import List, Set

from bench.base import machine

VARIABLE = "CKPTD_BENCH_RUN"  # All processes that a run starts inherit it. Its value is the run's token.
SHARED_MEMORY = pathlib.Path("/dev/shm")


def start_ticks(pid: int) -> int:
    """When a process has started, in clock ticks since the boot: with the pid it names the process. 0 if there is none."""
    if not machine.process_runs(pid):
        return 0
    with contextlib.suppress(OSError):
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return 0


def of_run(token: str) -> List[int]:
    """The living processes with this token. Those of other users are found by root alone."""
    wanted = f"\0{VARIABLE}={token}\0".encode()
    found = []
    for file in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # It has ended, or is another user's.
            if wanted in b"\0" + file.read_bytes():
                found.append(int(file.parent.name))
    return found


def kill(token: str, timeout: float = 30.0) -> None:
    """Kills the processes with this token, and those that they start meanwhile, and removes the shared memory that they alone
    have used. SystemExit if one is still there after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    shared: Set[pathlib.Path] = set()
    while pids := of_run(token):
        for pid in pids:
            shared |= _shared_memory_of(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SystemExit(f"the processes {pids} have not ended within {timeout:g} s after SIGKILL")
        time.sleep(0.01)
    if shared:
        _remove_shared_memory(shared)


def _shared_memory_of(pid: int) -> Set[pathlib.Path]:
    """The files and folders right in /dev/shm that a process has opened or mapped."""
    names: Set[str] = set()
    with contextlib.suppress(OSError):
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.add(os.readlink(link))
    with contextlib.suppress(OSError):
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        names |= {words[5] for words in (line.split(None, 5) for line in maps) if len(words) == 6}
    inside = (pathlib.Path(name).parts for name in names if name.startswith(f"{SHARED_MEMORY}/"))
    return {SHARED_MEMORY / parts[len(SHARED_MEMORY.parts)] for parts in inside}


def _remove_shared_memory(paths: Set[pathlib.Path]) -> None:
    """Removes them, except what another process uses."""
    others: Set[pathlib.Path] = set()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        others |= _shared_memory_of(int(folder.name))
    for path in paths - others:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
