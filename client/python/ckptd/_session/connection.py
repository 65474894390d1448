"""A client's connection to its daemon: the present session, and the next one after the daemon was restarted."""

import os
import threading
import time
from typing import Callable, Optional, TypeVar

from ckptd import errors
from ckptd._session import starters
from ckptd._session.outage import Outage
from ckptd._session.session import Session, is_transient
from ckptd._session.unfinished_work import UnfinishedWork

_Answer = TypeVar("_Answer")
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


class Connection:
    """Opens sessions with one daemon, one after another. Thread-safe.

    It belongs to the process that made it: use after fork raises.
    """

    def __init__(self, endpoint: str, keeper: bool, timeout: float) -> None:
        """Does not connect yet.

        Args:
            endpoint: `unix:/path`.
            keeper: keep a private daemon alive, see LocalDaemon.
            timeout: seconds for opening a session.
        """
        self._endpoint = endpoint
        self._keeper = keeper
        self._timeout = timeout
        self._instance = os.urandom(16).hex()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # Reentrant: a finalizer may call close() at any point.
        self._session: Optional[Session] = None
        self._must_share = False
        self._last_daemon = ""  # The instance of the last session's daemon; empty before the first reconnect.
        self._on_change: Callable[[], None] = lambda: None
        self.closed = threading.Event()
        self.outage = Outage(endpoint)
        self.unfinished = UnfinishedWork()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Has `callback` called after each new session and at close(), by the thread that caused it."""
        self._on_change = callback

    def session(self, timeout: Optional[float] = None) -> Session:
        """Returns the present session, or opens the next one if it has ended.

        Tries once, for `timeout` seconds at most, and no longer than the timeout of this connection: errors.Unavailable
        when no daemon answers. Waits for another thread that does so already.
        """
        self.check_usable()
        timeout = self._timeout if timeout is None else min(timeout, self._timeout)
        with self._lock:
            if self._session is not None and self._session.alive():
                return self._session
            if self.closed.is_set():
                raise _closed()
            old, self._session = self._session, None
            if old is not None:
                old.close(goodbye=False)
            # A client that has had shared memory insists on it: when the hand-off socket is missing now, the
            # daemon is still starting.
            must_share = self._keeper or (old is not None and old.handoff is not None) or self._must_share
            self._must_share = must_share
            session = self._open(old, must_share, timeout)
            if self.closed.is_set():
                session.close()
                raise _closed()
            self._session = session
        self._on_change()
        return session

    def _open(self, old: Optional[Session], must_share: bool, timeout: float) -> Session:
        if old is not None:
            self._last_daemon = old.daemon_instance
            self.outage.begin("it closed the connection")
        try:
            session = self._open_or_start(must_share, timeout)
        except errors.Unavailable as error:
            if self._last_daemon:
                self.outage.begin(getattr(error.__cause__, "strerror", None) or str(error))
            raise
        self.outage.end(daemon_is_new=session.daemon_instance != self._last_daemon)
        return session

    def _open_or_start(self, must_share: bool, timeout: float) -> Session:
        """Opens a session. Where nothing answers, it starts the private daemon of this process, if it has one there."""
        try:
            return Session(self._endpoint, self._instance, self._keeper, must_share, timeout)
        except errors.Unavailable:
            # Not for a keeper: it needs no daemon itself, and starting one makes another keeper.
            if self._keeper or not starters.start(self._endpoint):
                raise
        return Session(self._endpoint, self._instance, self._keeper, must_share, self._timeout)

    def peek(self) -> Optional[Session]:
        """Returns the last session, which may have ended, without opening one."""
        return self._session

    def check_usable(self) -> None:
        """Raises CkptdError with reason FORKED in a forked child, and with reason CLOSED after close()."""
        if os.getpid() != self._pid:
            raise errors.CkptdError(
                "this client was made before a fork and cannot be used in the child; call ckptd.connect() there",
                reason="FORKED",
            )
        if self.closed.is_set():
            raise _closed()

    def repeat(
        self, ask: "Callable[[], _Answer]", timeout: float, deadline: "Optional[Callable[[], float]]" = None
    ) -> _Answer:
        """Returns ask(), repeated with back-off while the daemon is away.

        Args:
            timeout: seconds after the first failure. Then the last error is raised.
            deadline: called after a failure; returns the time.monotonic() of the last repetition. Default: `timeout`
                seconds after the first failure.
        """
        give_up: Optional[float] = None
        pause = _FIRST_PAUSE_SECONDS
        while True:
            session = self.peek()
            try:
                return ask()
            except errors.CkptdError as error:
                if not is_transient(error):
                    raise
                if error.reason == "UNKNOWN_TOKEN" and session is not None:
                    session.end()
                now = time.monotonic()
                if deadline is not None:
                    give_up = deadline()
                elif give_up is None:
                    give_up = now + timeout
                if now + pause > give_up:
                    raise
                self.outage.warn(f"a call waits up to {timeout:g} s")
            if self.closed.wait(pause):
                raise _closed()
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Ends the session for good. No-op in a forked child, and the second time."""
        if os.getpid() != self._pid or self.closed.is_set():
            return
        self.closed.set()
        self._on_change()
        with self._lock:
            if self._session is not None:
                self._session.close()


def _closed() -> errors.CkptdError:
    return errors.CkptdError("this client is closed; call ckptd.connect() again", reason="CLOSED")
