"""Reports to the daemon how far the reading of a checkpoint has come, for ckptctl watch."""

import math
import time
from typing import Any, Callable

from ckptd import errors
from ckptd._session.interrupts import held_until_done, uninterrupted
from ckptd._session.session import Session
from ckptd._wire.protocol import messages

REPORT_SECONDS = 1.0  # Between two reports.
_ANSWER_SECONDS = 1.0  # A report times out after this.


class ReadProgressReporter:
    """Reports the progress of reading one checkpoint: once a second, and at its end if anything was reported.

    Best effort: a failed report never affects the read. By one thread at a time.

    Attributes:
        always (bool): report the end of a read that took less than a second, too.
    """

    def __init__(self, session: Session, lease: str) -> None:
        self.always = False
        self._session = session
        self._lease = lease
        self._read_bytes = self._total_bytes = 0
        self._reported = (0, 0)  # What was read, and in all.
        self._next_report = time.monotonic() + REPORT_SECONDS
        # Held by the report in flight: one at a time, so that a later one cannot overtake it.
        self._call: Any = None

    def begin_file(self, size: int) -> "Callable[[int], None]":
        """Begins a file of which `size` bytes are wanted.

        Returns a function to call, now and then, with how many have been read.
        """
        before = self._read_bytes
        self._total_bytes += size

        def advance(done: int) -> None:
            self._read_bytes = before + min(done, size)
            if time.monotonic() >= self._next_report:
                self._report()

        return advance

    def end_file(self) -> None:
        """Ends the file that was begun last: what was not read of it was not wanted."""
        self._total_bytes = self._read_bytes

    def finish(self) -> None:
        """Reports the end. Call it before the lease is closed: afterwards the daemon does not know it."""
        if self._call is None and not self.always:
            return
        self._await_call()
        if (self._read_bytes, self._total_bytes) != self._reported:
            self._report()
            self._await_call()

    def _await_call(self) -> None:
        """Blocks until the report in flight has ended, at the latest at its deadline.

        Its result does not matter.
        """
        if self._call is not None:
            with self._call:
                pass

    def _report(self) -> None:
        if self._call is not None and self._call.locked():
            return
        self._next_report = time.monotonic() + REPORT_SECONDS
        self._reported = (self._read_bytes, self._total_bytes)
        request = messages.ReportReadingRequest(
            lease=self._lease,
            read_bytes=min(self._read_bytes, self._total_bytes),
            total_bytes=self._total_bytes,
        )
        try:
            with uninterrupted():
                call = self._session.start(self._session.checkpoints.ReportReading, request, _ANSWER_SECONDS)
                self._call = held_until_done(call)
        except errors.CkptdError:  # The session has ended, and the read with it.
            self._next_report = math.inf
