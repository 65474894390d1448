"""Copies from devices into the daemon's memory, which go on after the call that has begun them."""

import abc
import threading
from typing import List


class Copies(abc.ABC):
    """The copies of one file. Thread-safe."""

    count = 0  # How many there are.

    @abc.abstractmethod
    def finish(self) -> None:
        """Blocks until the bytes are in the daemon's memory. RuntimeError if a device has failed."""

    @abc.abstractmethod
    def hold_devices(self) -> None:
        """Has the devices begin what the caller gives them from now on after the copies.

        Blocks only until the copies are queued; those of the first save are queued when the memory is pinned.
        """

    @abc.abstractmethod
    def changed(self) -> str:
        """Describes a tensor that was changed before its bytes were copied, or held; empty if there is none."""


_lock = threading.Lock()
_in_flight: List[Copies] = []


def begun(copies: Copies) -> None:
    """Notes copies that are in flight, and keeps them until ended()."""
    with _lock:
        _in_flight.append(copies)


def ended(copies: Copies) -> None:
    """Forgets copies that have ended. No-op if they are not in flight."""
    with _lock:
        if copies in _in_flight:
            _in_flight.remove(copies)


def in_flight() -> List[Copies]:
    """Returns the copies that have not ended."""
    with _lock:
        return list(_in_flight)


def finish_all() -> None:
    """Waits for the copies of earlier saves, such as one that Ctrl-C has ended.

    The daemon may lend the same memory for the next save, which a late copy must not overwrite.
    """
    for copies in in_flight():
        try:
            copies.finish()
        except RuntimeError:
            pass  # The call that has begun them reports it. A device that has failed copies no more.
