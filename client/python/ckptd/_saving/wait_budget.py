"""How long a save may wait for its daemon."""

import time


class WaitBudget:
    """The seconds that one call may wait for the daemon, over all its requests. What this process computes and copies
    meanwhile does not count: see add().
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds  # time.monotonic(); moves with add().

    def left(self) -> float:
        """Returns the seconds that are left, 0 at least."""
        return max(0.0, self.end - time.monotonic())

    def add(self, seconds: float) -> None:
        """Leaves out a time in which the call did not wait for the daemon."""
        self.end += seconds
