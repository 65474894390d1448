"""Work that goes on in threads after the call that has begun it, and that the end of the client waits for."""

import threading
import time
from typing import Callable, Set


class UnfinishedWork:
    """The threads of one client. Thread-safe.

    The interpreter waits for them at its exit, too: they are no daemon threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Set[threading.Thread] = set()

    def start(self, work: Callable[[], None], name: str) -> None:
        """Runs work() in a thread. It must not raise."""

        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name=name)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits until the work that was begun so far has ended. Returns False if it has not after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
