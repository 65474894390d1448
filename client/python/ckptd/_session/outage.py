"""What a client logs while no daemon answers: that it lost the daemon, that it waits, that it is connected again."""

import logging
import threading
import time
from typing import Optional

_log = logging.getLogger("ckptd")

_REPEAT_SECONDS = 10.0  # Between two warnings of one outage.


class Outage:
    """The time in which no daemon answers a client that has had one. Thread-safe.

    Losing an idle daemon is normal: a private one ends with its last user. So it is logged as INFO until
    a call waits for the daemon; from then on, and at the end of such an outage, as WARNING.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._since: Optional[float] = None  # time.monotonic(); None: a daemon answers.
        self._why = ""
        self._warned_at: Optional[float] = None  # In this outage.

    def begin(self, why: str) -> None:
        """Notes that no daemon answers, and why. Logs it the first time."""
        with self._lock:
            is_first = self._since is None
            self._since = self._since or time.monotonic()
            self._why = why
        if is_first:
            _log.info("ckptd: lost the daemon at %s (%s); connecting again", self._endpoint, why)

    def warn(self, who_waits: str) -> None:
        """Warns that a call waits for a daemon; at most every 10 seconds. No-op while one answers."""
        with self._lock:
            now = time.monotonic()
            if self._since is None or (self._warned_at is not None and now - self._warned_at < _REPEAT_SECONDS):
                return
            self._warned_at = now
        _log.warning("ckptd: %s; %s until one answers", self, who_waits)

    def end(self, daemon_is_new: bool) -> None:
        """Notes that a daemon answers again. No-op if there was no outage."""
        with self._lock:
            since, self._since = self._since, None
            was_warned, self._warned_at = self._warned_at is not None, None
        if since is None:
            return
        _log.log(
            logging.WARNING if was_warned else logging.INFO,
            "ckptd: connected to %s at %s again, after %.1f s without one",
            "a new daemon" if daemon_is_new else "the same daemon",
            self._endpoint,
            time.monotonic() - since,
        )

    def seconds(self) -> float:
        """Returns for how long no daemon has answered; 0 while one answers."""
        with self._lock:
            return 0.0 if self._since is None else time.monotonic() - self._since

    def __str__(self) -> str:
        """The text for messages: since when no daemon answers, where, and why. Empty while one answers."""
        with self._lock:
            if self._since is None:
                return ""
            seconds = time.monotonic() - self._since
            return f"no daemon has answered at {self._endpoint} for {seconds:.1f} s ({self._why})"
