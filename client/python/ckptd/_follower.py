"""One thread for each client: sees the daemon go and come back, and hears how saves end, whether or not
anybody waits for them.
"""

import collections
import logging
import os
import select
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Deque, List, Optional

import grpc

from ckptd import errors
from ckptd._session import Session, is_transient
from ckptd._wire import messages, set_duration, to_error, types

if TYPE_CHECKING:
    from ckptd._client import Sessions
    from ckptd._saving import Part
    from ckptd.run import Run

_log = logging.getLogger("ckptd")

_ASK_SECONDS = 60.0  # How long the daemon holds a question before it answers with the level so far.
_GRACE_SECONDS = 15.0
_LONGEST_PAUSE = 1.0  # Between two tries to reach a daemon that is away.
_AGAIN_SECONDS = 0.2  # After a question that nobody answered.
_JOIN_SECONDS = 5.0
_NOT_YET = (
    "DEADLINE_EXCEEDED",
    "NOT_JOINED",
    "UNKNOWN_RUN",
)  # Answers of a daemon that does not know us again yet.
LOST_SECONDS = 600.0  # After so long without a daemon nobody will tell any more how a save ended.


class _Question:
    """A save whose end is not known, and the call that asks for it, if one is under way."""

    def __init__(self, save: "Part") -> None:
        self.save = save
        self.call: Any = None
        self.not_before = 0.0
        self.unanswered_since: Optional[float] = None


class Follower:
    """follow() a save, join() a run; the rest happens by itself."""

    def __init__(self, sessions: "Sessions") -> None:
        # Strong: nobody closes the sessions of a save that is under way.
        self._sessions = sessions
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._runs: "weakref.WeakSet[Run]" = weakref.WeakSet()
        self._news: "Deque[Callable[[], None]]" = collections.deque()  # Run on the thread.
        self._questions: List[_Question] = []  # Of the thread.
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._finalizer = weakref.finalize(self, _close_pipe, self._wake_read, self._wake_write)
        self._finalizer.atexit = False

    def join(self, run: "Run") -> None:
        """From now on the run is joined anew whenever the daemon comes back."""
        self._runs.add(run)
        self.start()

    def follow(self, save: "Part") -> None:
        """From now on save._hear() is told of its levels and its end."""
        self._post(lambda: self._questions.append(_Question(save)))
        self.start()

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # It is awake already.

    def start(self) -> None:
        """Watches from now on, whether or not there is a run."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ckptd-follower", daemon=True)
                self._thread.start()

    def _post(self, news: "Callable[[], None]") -> None:
        self._news.append(news)
        self.wake()

    # ---- the thread

    def _run(self) -> None:
        served: Optional[Session] = None  # The session that all is set up in.
        pause = 0.02
        next_try = 0.0
        while not self._sessions.closed.is_set():
            if served is None or not served.alive() or served is not self._sessions.peek():
                served = None
                if time.monotonic() >= next_try:
                    served = self._come_back()
                    pause = 0.02 if served else min(2 * pause, _LONGEST_PAUSE)
                    next_try = time.monotonic() + pause
            seconds = 1.0 if served else next_try - time.monotonic()
            if served is not None:
                seconds = min(seconds, self._ask_all(served))
            self._give_up_old()
            self._sleep(served, max(0.0, seconds))
            while self._news:
                self._news.popleft()()
        for question in self._questions:
            if not question.save._over():
                question.save._lose("the client was closed before", expected=True)

    def _come_back(self) -> Optional[Session]:
        """The session with every run joined in it: so a daemon hears early which saves its predecessor took
        along.
        """
        try:
            session = self._sessions.current()
        except errors.CkptdError as error:
            if not is_transient(error):
                _log.warning("ckptd: connecting anew: %s", error)
            return None
        for run in list(self._runs):
            try:
                run._joined(_JOIN_SECONDS)
            except errors.CkptdError as error:
                # Perhaps a root that hangs, or an attempt that is over; the run's next call says so to its
                # caller.
                level = logging.DEBUG if is_transient(error) else logging.WARNING
                _log.log(level, "ckptd: joining %s anew: %s", run.root, error)
        return session

    def _sleep(self, session: Optional[Session], seconds: float) -> None:
        """Until something is posted, the daemon hangs up, or the time is over."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        descriptor = session.handoff.fileno() if session is not None and session.handoff is not None else -1
        if descriptor >= 0:
            poll.register(descriptor, select.POLLRDHUP)
        poll.poll(seconds * 1000)
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass

    def _ask_all(self, session: Session) -> float:
        """Asks what is not being asked; seconds until there is more to ask."""
        now, wait = time.monotonic(), 1.0
        for question in list(self._questions):
            if question.save._over():  # Its offer was refused.
                self._questions.remove(question)
            elif question.save._home != session.daemon_instance:
                question.unanswered_since = None  # An offer has deadlines of its own.
                question.save._run._offers.add([question.save])
            elif question.call is None and now >= question.not_before:
                self._ask(session, question)
            elif question.call is None:
                wait = min(wait, question.not_before - now)
        return wait

    def _ask(self, session: Session, question: _Question) -> None:
        save = question.save
        wanted = types.COMMITTED if save._level >= types.SEALED else types.SEALED
        request = messages.WaitRequest(
            key=save._key, level=wanted, sequence=save.sequence, attempt=save._attempt
        )
        set_duration(request.timeout, _ASK_SECONDS)
        try:
            question.call = session.start(session.checkpoints.Wait, request, _ASK_SECONDS + _GRACE_SECONDS)
        except errors.Unavailable:  # The session ended just now.
            return
        question.call.add_done_callback(
            lambda call: self._post(lambda: self._answered(session, question, call))
        )

    def _answered(self, session: Session, question: _Question, call: Any) -> None:
        question.call = None
        try:
            checkpoint = call.result().checkpoint
        except grpc.FutureCancelledError:
            return self._note_silence(question)
        except grpc.RpcError as error:
            failure = to_error(error)
            if failure.reason == "UNKNOWN_TOKEN":
                session.end()
            if is_transient(failure) or failure.reason in _NOT_YET:
                return self._note_silence(question)
            self._drop(question)
            return question.save._lose(str(failure))
        question.unanswered_since = None
        if question.save._hear(checkpoint):
            self._drop(question)
        elif question.save._home == session.daemon_instance:
            self._ask(session, question)

    def _drop(self, question: _Question) -> None:
        if question in self._questions:
            self._questions.remove(question)

    def _note_silence(self, question: _Question) -> None:
        question.not_before = time.monotonic() + _AGAIN_SECONDS
        if question.unanswered_since is None:
            question.unanswered_since = time.monotonic()

    def _give_up_old(self) -> None:
        now = time.monotonic()
        for question in list(self._questions):
            if question.unanswered_since is not None and now - question.unanswered_since > LOST_SECONDS:
                self._questions.remove(question)
                question.save._lose(f"no daemon has answered for {LOST_SECONDS:.0f} s")


def _close_pipe(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
