"""Functions that start the private daemons of this process again when they have ended."""

import os
import threading
from typing import Callable, Dict, List

Start = Callable[[], None]  # Returns when the daemon answers. Raises errors.CkptdError if it cannot be started.

_lock = threading.Lock()
_starts: Dict[str, List[Start]] = {}


def add(endpoint: str, start: Start) -> None:
    """Has the connections of this process call `start` when nothing answers at the endpoint."""
    with _lock:
        _starts.setdefault(endpoint, []).append(start)


def remove(endpoint: str, start: Start) -> None:
    """Undoes one add(). No-op if there was none."""
    with _lock:
        starts = _starts.get(endpoint, [])
        if start in starts:
            starts.remove(start)


def clear() -> None:
    """Forgets everything: at the end of the process, which needs no daemon any more."""
    with _lock:
        _starts.clear()


def start(endpoint: str) -> bool:
    """Starts the daemon of an endpoint. Returns False if this process uses no private daemon there.

    Raises:
        errors.CkptdError: it cannot be started.
    """
    with _lock:
        starts = _starts.get(endpoint, [])
        last = starts[-1] if starts else None
    if last is None:
        return False
    last()
    return True


def _forget() -> None:
    """Called in a forked child: the daemon is the parent's, and a thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _starts.clear()


os.register_at_fork(after_in_child=_forget)
