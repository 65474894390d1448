"""Keeps Ctrl-C out of the locks that the threads of a channel share.

CPython runs a signal's handler between two instructions of the main thread. Where that is right after
threading.Condition.__enter__ has acquired its lock, the KeyboardInterrupt leaves the lock acquired for ever. gRPC
enters such a condition of the channel at the begin of each call: the next call of any thread would hang.
"""

import signal
import threading
from typing import Any, Callable, List, Tuple

_LOOK_SECONDS = 0.2  # The same as in gRPC's own wait.


class uninterrupted:
    """In its body the handler of SIGINT does not run; it runs at its end. No-op outside the main thread.

    For work that does not block.
    """

    def __enter__(self) -> None:
        self._handler: Any = None
        self._is_inside = False
        self._missed: List[Tuple[int, Any]] = []
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):  # Not the default action, and not a handler that was not installed from Python.
            self._handler = handler
            self._is_inside = True
            signal.signal(signal.SIGINT, self._on_signal)

    def __exit__(self, *_: Any) -> None:
        if self._handler is None:
            return
        self._is_inside = False
        signal.signal(signal.SIGINT, self._handler)
        if self._missed:
            self._handler(*self._missed[0])

    def _on_signal(self, number: int, frame: Any) -> None:
        # Another signal's handler may have raised before __exit__ has restored this one's: it stays installed.
        if self._is_inside:
            self._missed.append((number, frame))
        else:
            self._handler(number, frame)


def held_until_done(future: Any) -> Any:
    """Returns a lock that is held until a grpc.Future is done. Call it uninterrupted.

    To wait for the lock leaves nothing behind, other than for the future.
    """
    lock = threading.Lock()  # Implemented in C: an acquire() that a signal interrupts leaves it as it was.
    lock.acquire()
    future.add_done_callback(lambda _: lock.release())
    return lock


def call(start: Callable[[], Any]) -> Any:
    """Returns the result of the grpc.Future that `start` makes. In the main thread Ctrl-C cancels it."""
    future: Any = None
    try:
        with uninterrupted():
            future = start()
            running = held_until_done(future)
        # _thread.interrupt_main, and a signal that another thread has got, do not end a wait.
        while not running.acquire(timeout=_LOOK_SECONDS):
            pass
    except BaseException:
        if future is not None:
            with uninterrupted():
                future.cancel()
        raise
    with uninterrupted():
        return future.result()
