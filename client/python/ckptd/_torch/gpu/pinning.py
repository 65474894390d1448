"""Pins the daemon's segments for copies from devices, chunk by chunk, in a thread of its own.

A segment is pinned once, beside the first save that uses it, and unpinned when it is unmapped. Pinning takes
longer than copying, and the runtime holds up other calls of the process meanwhile: so no trainer's thread does
it, and a chunk is small.
"""

import atexit
import os
import queue
import threading
import warnings
import weakref
from typing import Any, Callable, List, Optional, Tuple

from ckptd._memory import native
from ckptd._session.segments import Segment
from ckptd._torch.gpu.devices import devices

CHUNK_BYTES = 64 << 20
_EXIT_SECONDS = 10.0  # That the interpreter waits, at its exit, for the chunk that is being pinned.

_lock = threading.Lock()
_thread_lock = threading.RLock()  # Reentrant: the end of a segment may be noticed at any point.
_tasks: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
_thread: Optional[threading.Thread] = None
_is_exiting = threading.Event()
_pinned_bytes = 0
_warned = False


class Pinning:
    """The pinning of one segment. Thread-safe."""

    def __init__(self, segment: Segment) -> None:
        self._devices = devices()
        self._chunks = [
            (segment.address + begin, min(CHUNK_BYTES, segment.size - begin), threading.Event())
            for begin in range(0, segment.size, CHUNK_BYTES)
        ]
        self._pinned: List[Tuple[int, int]] = []  # (address, bytes). Touched by the thread only.

    def chunks(self) -> "List[Tuple[int, int, threading.Event]]":
        """Returns (address, bytes, when it is pinned or could not be) of each chunk.

        No copy may reach from one chunk into the next.
        """
        return self._chunks

    def pin(self) -> None:
        """Pins the chunks, up to the first one that cannot be; for the thread."""
        global _pinned_bytes
        why = ""
        for address, size, done in self._chunks:
            why = why or _over_limit(size) or self._devices.pin(address, size)
            if why:
                _warn(why)
            else:
                self._pinned.append((address, size))
                _pinned_bytes += size
            done.set()

    def unpin(self) -> None:
        """Unpins the chunks; for the thread."""
        global _pinned_bytes
        for address, size in self._pinned:
            self._devices.unpin(address)
            _pinned_bytes -= size
        self._pinned = []


def pinning_of(segment: Segment) -> Pinning:
    """Returns the pinning of a segment, which begins with the first call for it."""
    with _lock:
        if segment.pinning is None:
            segment.pinning = pinning = Pinning(segment)
            segment.set_unmap(lambda address, size: _post(lambda: _unpin_and_unmap(pinning, address, size)))
            reference = weakref.ref(segment)
            _post(lambda: _pin(reference, pinning))
        found: Pinning = segment.pinning
        return found


def pinned_bytes() -> int:
    """Returns how much memory of the daemon this process has pinned now."""
    return _pinned_bytes


def _pin(segment: "weakref.ref[Segment]", pinning: Pinning) -> None:
    kept = segment()  # Not unmapped meanwhile.
    if kept is not None:
        pinning.pin()


def _unpin_and_unmap(pinning: Pinning, address: int, size: int) -> None:
    pinning.unpin()
    native.unmap(address, size)


def _post(task: "Callable[[], None]") -> None:
    global _thread
    _tasks.put(task)
    with _thread_lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_work, name="ckptd-pinning", daemon=True)
            _thread.start()


def _work() -> None:
    while not _is_exiting.is_set():
        _tasks.get()()


@atexit.register
def _end() -> None:
    """Ends the thread before the interpreter does: one that is in the runtime of the devices then ends the process by
    std::terminate(). The kernel unpins what is left.
    """
    _is_exiting.set()
    _tasks.put(lambda: None)
    if _thread is not None:
        _thread.join(_EXIT_SECONDS)


def _over_limit(size: int) -> str:
    asked: Any = os.environ.get("CKPTD_PINNED_BYTES", "")
    if asked.isdigit() and _pinned_bytes + size > int(asked):
        return f"$CKPTD_PINNED_BYTES allows {asked} bytes"
    return ""


def _warn(why: str) -> None:
    """Warns once in the process."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"the daemon's memory cannot be pinned ({why}): copies from devices are slower, and stage=\"overlap\" "
            "holds the optimizer's step up until they are done",
            stacklevel=2,
        )
