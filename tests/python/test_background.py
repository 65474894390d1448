"""Background reads run with idle priority, in threads of their own, so that the trainer's threads keep
theirs.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import threading
import time
from typing import Any, Callable, Iterator, List

import ckptd
import pytest
from ckptd._memory import native
from ckptd._memory.image import Memory
from ckptd._reading.resident_files import ResidentFile
from ckptd._session.session import Session
from checkpoint_files import write_checkpoint

CONTENT = random.Random(9).randbytes(24 << 20)


@contextlib.contextmanager
def watched() -> Iterator[List[int]]:
    """Collects the threads of this process that run with idle priority during a call."""
    seen: List[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for name in os.listdir("/proc/self/task"):
                with contextlib.suppress(ProcessLookupError):
                    if os.sched_getscheduler(int(name)) == os.SCHED_IDLE:
                        seen.append(int(name))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def gives_way(read: Callable[[], Any]) -> bool:
    """Returns whether idle threads are seen while a call is repeated. One call may be too short to see them."""
    with watched() as seen:
        end = time.monotonic() + 30
        for turn in range(10_000):
            if seen or (turn >= 20 and time.monotonic() > end):
                break
            read()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    return bool(seen)


def never_gives_way(read: Callable[[], Any]) -> bool:
    with watched() as seen:
        for _ in range(20):
            read()
    return not seen


def test_background_read_from_the_disk_runs_with_idle_priority(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "step_1", 1, {"big": CONTENT}, 1)
    root = ckptd.open_root(tmp_path)
    with root.open(background=True) as checkpoint:
        assert checkpoint.read("big") == CONTENT
        assert gives_way(lambda: checkpoint.read("big"))
        checkpoint.background = False
        assert never_gives_way(lambda: checkpoint.read("big"))
    with root.open() as checkpoint:
        assert never_gives_way(lambda: checkpoint.read("big"))


def test_background_read_finds_corruption(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, "step_1", 1, {"big": CONTENT}, 1)
    with open(tmp_path / "step_1/big", "r+b") as file:
        file.seek(len(CONTENT) // 2)
        file.write(b"damage")
    with ckptd.open_root(tmp_path).open(background=True) as checkpoint, pytest.raises(ckptd.Corrupt):
        checkpoint.read("big")


class Alive(Session):
    def __init__(self) -> None:  # No daemon.
        pass

    def alive(self) -> bool:
        return True


def test_background_copy_from_memory_runs_with_idle_priority() -> None:
    address, keep = native.address_of(CONTENT)
    memory = Memory([(address, len(CONTENT))], [keep])
    into = bytearray(len(CONTENT))

    def fresh(background: bool) -> None:
        with ResidentFile(memory, 0, len(CONTENT), Alive(), 2, open_on_disk=pytest.fail) as file:  # type: ignore[arg-type]
            file.background = background
            file.readinto(into)

    fresh(background=True)
    assert into == CONTENT
    assert gives_way(lambda: fresh(background=True))
    assert never_gives_way(lambda: fresh(background=False))


def test_background_read_stays_idle_when_it_goes_on_from_the_disk(tmp_path: pathlib.Path) -> None:
    class Ended(Alive):
        def alive(self) -> bool:
            return False

    write_checkpoint(tmp_path, "step_1", 1, {"big": CONTENT}, 1)
    with ckptd.open_root(tmp_path).open() as checkpoint:
        zeros = bytearray(len(CONTENT))
        address, keep = native.address_of(zeros)
        memory = Memory([(address, len(zeros))], [keep])
        with ResidentFile(memory, 0, len(CONTENT), Ended(), 1, lambda: checkpoint._open("big")) as file:
            file.background = True
            file.readinto(bytearray(10))
            assert file._disk is not None and file._disk.background
