"""Waits for other processes, always with a deadline."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import time
from typing import IO, Any, Callable, TypeVar, Union

T = TypeVar("T")
TIMEOUT = 60.0  # Seconds. Generous: it is reached only when something is wrong.


def until(condition: Callable[[], T], what: str, timeout: float = TIMEOUT) -> T:
    """Polls until `condition` returns something true, and returns that. Fails the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"timed out after {timeout} s waiting for {what}")


def until_equal(read: Callable[[], T], expected: T, what: str, timeout: float = TIMEOUT) -> None:
    """Polls until `read` returns `expected`. Fails the test after `timeout` seconds, with what it returned last."""
    deadline = time.monotonic() + timeout
    while (found := read()) != expected:
        if time.monotonic() >= deadline:
            raise AssertionError(f"timed out after {timeout} s waiting for {what}: {expected}; found {found}")
        time.sleep(0.02)


def readable(file: Union[int, IO[Any]], timeout: float = TIMEOUT) -> bool:
    """Waits until there is something to read, or the end. Not by select(): that refuses descriptors above 1023, which a
    process that runs many tests may have.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def stop(pid: int) -> None:
    """Stops a process, and returns when none of its threads runs any more: each takes the signal when it is scheduled."""
    os.kill(pid, signal.SIGSTOP)
    threads = pathlib.Path(f"/proc/{pid}/task")
    until(lambda: all(stat.read_text().rsplit(")", 1)[1].split()[0] == "T" for stat in threads.glob("*/stat")), f"the stop of {pid}")


def alive(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
