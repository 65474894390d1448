"""The save watcher: one thread of a client that notices when its daemon ends and another one starts, and how saves end."""

import collections
import logging
import os
import select
import threading
import time
import weakref
from typing import Any, Callable, Deque, List, Optional

import grpc

from ckptd import errors
from ckptd._membership.unended_save import JoinableRun, UnendedSave
from ckptd._session.connection import Connection
from ckptd._session.session import Session, is_transient
from ckptd._wire.protocol import messages, set_duration, types
from ckptd._wire.status import to_error

_log = logging.getLogger("ckptd")

GIVE_UP_SECONDS = 600.0  # After so long without a daemon the end of a save counts as unknown.
_WAIT_SECONDS = 60.0  # The daemon holds a Wait call this long before it answers with the level so far.
_WAIT_GRACE_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 0.02  # Between two tries to reach a daemon that is away,
_LONGEST_PAUSE_SECONDS = 1.0  # which doubles up to this.
_RETRY_SECONDS = 0.2  # After a Wait call that failed.
_IDLE_SECONDS = 1.0
_JOIN_SECONDS = 5.0
# The daemon does not know us again yet.
_NOT_YET_REASONS = ("DEADLINE_EXCEEDED", "NOT_JOINED", "UNKNOWN_RUN")


class _WatchedSave:
    """A save whose end is not known, and the Wait call for it, if one is in flight."""

    def __init__(self, save: UnendedSave) -> None:
        self.save = save
        self.call: Any = None
        self.not_before = 0.0  # time.monotonic() of the next call.
        self.unanswered_since: Optional[float] = None


class SaveWatcher:
    """Follows saves to their end, and joins runs again in each new session. Thread-safe.

    A user need not wait for a save: the watcher learns its end anyway. Its thread starts with the first
    run.
    """

    def __init__(self, connection: Connection) -> None:
        # A strong reference: the connection must not be collected, and so closed, while saves are in flight.
        self._connection = connection
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._runs: "weakref.WeakSet[JoinableRun]" = weakref.WeakSet()
        self._posted: "Deque[Callable[[], None]]" = collections.deque()  # Run by the thread.
        self._watched: List[_WatchedSave] = []  # Touched by the thread only.
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._finalizer = weakref.finalize(self, _close, self._wake_read, self._wake_write)
        self._finalizer.atexit = False

    def add_run(self, run: JoinableRun) -> None:
        """Joins the run again whenever a new session begins. Does not keep the run alive."""
        self._runs.add(run)
        self.start()

    def remove_run(self, run: JoinableRun) -> None:
        """Undoes add_run()."""
        self._runs.discard(run)

    def follow(self, save: UnendedSave) -> None:
        """Tells the save its levels and its end, by UnendedSave.update()."""
        self._post(lambda: self._watched.append(_WatchedSave(save)))
        self.start()

    def wake(self) -> None:
        """Has the thread look at the session and the saves now."""
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # The pipe is full: the thread is about to wake.

    def start(self) -> None:
        """Starts the thread, which keeps the session open even if there is no run. No-op if it runs."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ckptd-save-watcher", daemon=True)
                self._thread.start()

    def _post(self, work: "Callable[[], None]") -> None:
        self._posted.append(work)
        self.wake()

    # ---- the thread

    def _run(self) -> None:
        served: Optional[Session] = None  # The session in which every run has been joined.
        pause = _FIRST_PAUSE_SECONDS
        next_try = 0.0
        while not self._connection.closed.is_set():
            if served is None or not served.alive() or served is not self._connection.peek():
                served = None
                if time.monotonic() >= next_try:
                    served = self._reconnect()
                    pause = _FIRST_PAUSE_SECONDS if served else min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    next_try = time.monotonic() + pause
            seconds = _IDLE_SECONDS if served else next_try - time.monotonic()
            if served is not None:
                seconds = min(seconds, self._call_for_all(served))
            elif self._watched:
                self._connection.outage.warn(f"{len(self._watched)} saves that have not ended wait")
            self._give_up_unanswered()
            self._sleep(served, max(0.0, seconds))
            while self._posted:
                self._posted.popleft()()
        for watched in self._watched:
            if not watched.save.has_ended():
                watched.save.end_as_unknown("the client was closed before", expected=True)

    def _reconnect(self) -> Optional[Session]:
        """Returns the present session with every run joined in it, or None if no daemon answers.

        Joining early tells a new daemon which saves its predecessor has not finished.
        """
        try:
            session = self._connection.session()
        except errors.CkptdError as error:
            if not is_transient(error):
                _log.warning("ckptd: connecting again: %s", error)
            return None
        for run in list(self._runs):
            try:
                run.joined(_JOIN_SECONDS)
            except errors.CkptdError as error:
                # Such as a root that hangs, or an attempt that has ended. The run's next call raises it to
                # the user.
                level = logging.DEBUG if is_transient(error) else logging.WARNING
                _log.log(level, "ckptd: joining %s again: %s", run.root, error)
        return session

    def _sleep(self, session: Optional[Session], seconds: float) -> None:
        """Blocks until something is posted, the daemon hangs up, or the time is over."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if session is not None and session.handoff is not None:
            poll.register(session.handoff, select.POLLRDHUP)
        poll.poll(seconds * 1000)
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass

    def _call_for_all(self, session: Session) -> float:
        """Starts a Wait call for each save that has none. Returns the seconds until there is more to do."""
        now, seconds = time.monotonic(), _IDLE_SECONDS
        for watched in list(self._watched):
            if watched.save.has_ended():  # Its recovery has failed, or its user has aborted it.
                self._watched.remove(watched)
            elif watched.save.daemon_instance != session.daemon_instance:
                watched.unanswered_since = None  # The recovery has a deadline of its own.
                watched.save.queue_recovery()
            elif watched.call is None and now >= watched.not_before:
                self._call(session, watched)
            elif watched.call is None:
                seconds = min(seconds, watched.not_before - now)
        return seconds

    def _call(self, session: Session, watched: _WatchedSave) -> None:
        save = watched.save
        # One level after the other: the user sees Save.level change to "sealed" before the commit.
        wanted = types.COMMITTED if save.level >= types.SEALED else types.SEALED
        request = messages.WaitRequest(key=save.key, level=wanted, sequence=save.sequence, attempt=save.attempt)
        set_duration(request.timeout, _WAIT_SECONDS)
        try:
            watched.call = session.start(
                session.checkpoints.Wait, request, _WAIT_SECONDS + _WAIT_GRACE_SECONDS
            )
        except errors.Unavailable:  # The session has just ended.
            return
        watched.call.add_done_callback(
            lambda call: self._post(lambda: self._answered(session, watched, call))
        )

    def _answered(self, session: Session, watched: _WatchedSave, call: Any) -> None:
        watched.call = None
        try:
            checkpoint = call.result().checkpoint
        except grpc.FutureCancelledError:
            return self._retry_later(watched)
        except grpc.RpcError as error:
            failure = to_error(error)
            if failure.reason == "UNKNOWN_TOKEN":
                session.end()  # The daemon has dropped it: _run() opens a new one.
            if is_transient(failure) or failure.reason in _NOT_YET_REASONS:
                return self._retry_later(watched)
            self._drop(watched)
            return watched.save.end_as_unknown(str(failure))
        watched.unanswered_since = None
        if watched.save.update(checkpoint):
            self._drop(watched)
        elif watched.save.daemon_instance == session.daemon_instance:
            self._call(session, watched)

    def _drop(self, watched: _WatchedSave) -> None:
        if watched in self._watched:
            self._watched.remove(watched)

    def _retry_later(self, watched: _WatchedSave) -> None:
        watched.not_before = time.monotonic() + _RETRY_SECONDS
        if watched.unanswered_since is None:
            watched.unanswered_since = time.monotonic()

    def _give_up_unanswered(self) -> None:
        now = time.monotonic()
        for watched in list(self._watched):
            if watched.unanswered_since is not None and now - watched.unanswered_since > GIVE_UP_SECONDS:
                self._watched.remove(watched)
                watched.save.end_as_unknown(f"no daemon has answered for {GIVE_UP_SECONDS:.0f} s")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
