"""A client of a daemon: its session, and the next one when the daemon was restarted."""

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from ckptd import errors
from ckptd._follower import Follower
from ckptd._session import Session, is_transient, socket_path
from ckptd._wire import messages

if TYPE_CHECKING:
    from ckptd.run import Run

DEFAULT_ENDPOINT = "unix:/run/ckptd/ckptd.sock"
_CONNECT_SECONDS = 10.0
_Answer = TypeVar("_Answer")


def connect(endpoint: Optional[str] = None, timeout: float = _CONNECT_SECONDS) -> "Client":
    """A client of the daemon at `endpoint`, else $CKPTD_ENDPOINT, else unix:/run/ckptd/ckptd.sock.
    Unavailable when none answers.
    """
    return Client(endpoint, timeout=timeout)


class Client:
    """Made by connect(). Thread-safe; of the process that made it: use after fork raises.

    Its session ends with close(), or when nothing refers to it any more.
    """

    def __init__(
        self, endpoint: Optional[str] = None, keeper: bool = False, timeout: float = _CONNECT_SECONDS
    ) -> None:
        self.endpoint = endpoint or os.environ.get("CKPTD_ENDPOINT") or DEFAULT_ENDPOINT
        socket_path(self.endpoint)
        self._sessions = Sessions(self.endpoint, keeper, timeout)
        self._sessions.current()
        if keeper:
            self._sessions.follower.start()
        self._finalizer = weakref.finalize(self, self._sessions.close)

    def run(
        self,
        root: "Union[str, os.PathLike[str]]",
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        num_kept_ckpts: Optional[int] = None,
        run_id: str = "",
        attempt: Optional[int] = None,
        commit_timeout: float = 600.0,
    ) -> "Run":
        """The job's series of checkpoints in the directory `root`, which is made when it is missing.

        rank, world_size: of this process; else the process group's, else $RANK and $WORLD_SIZE, else 0 of 1.
        num_kept_ckpts: how many committed checkpoints to keep, at least 1; None keeps all.
        run_id: a label that must match what the root has; attempt: refuse to be any other attempt than this.
        commit_timeout: seconds from a save's first Begin to its last Seal.
        """
        from ckptd.run import Run

        return Run(self, root, rank, world_size, num_kept_ckpts, run_id, attempt, commit_timeout)

    def status(self) -> Any:
        """The daemon's status: the message ckptd.v1.Status."""
        session = self._sessions.current()
        return session.call(session.admin.GetStatus, messages.GetStatusRequest(), 10.0)

    def close(self) -> None:
        """Ends the session: what is not sealed is dropped, what is sealed goes on."""
        self._finalizer()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ckptd.Client {self.endpoint}>"


class Sessions:
    """The present session of a client, and how to get the next one. Thread-safe."""

    def __init__(self, endpoint: str, keeper: bool, timeout: float) -> None:
        self._endpoint = endpoint
        self._keeper = keeper
        self._timeout = timeout
        self._instance = os.urandom(16).hex()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # close() may come from a finalizer, at any point.
        self._session: Optional[Session] = None
        self._must_share = False
        self.closed = threading.Event()
        self.follower = Follower(self)

    def current(self) -> Session:
        """The session, or a new one when it has ended. One try: Unavailable when there is no daemon."""
        self.check_usable()
        with self._lock:
            if self._session is not None and self._session.alive():
                return self._session
            if self.closed.is_set():
                raise _closed()
            old, self._session = self._session, None
            if old is not None:
                old.close(goodbye=False)
            # Once it had shared memory: a hand-off socket that is missing now belongs to a daemon that is
            # starting.
            must_share = self._keeper or (old is not None and old.handoff is not None) or self._must_share
            self._must_share = must_share
            session = Session(self._endpoint, self._instance, self._keeper, must_share, self._timeout)
            if self.closed.is_set():
                session.close()
                raise _closed()
            self._session = session
        self.follower.wake()
        return session

    def peek(self) -> Optional[Session]:
        """The session as it is, alive or not."""
        return self._session

    def check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise errors.CkptdError(
                "this client was made before a fork and cannot be used in the child; call ckptd.connect() there",
                reason="FORKED",
            )
        if self.closed.is_set():
            raise _closed()

    def repeat(self, ask: "Callable[[], _Answer]", patience: float) -> _Answer:
        """ask() until its answer is not that the daemon is away: that long it is waited for, counted from
        the first failure.
        """
        give_up: Optional[float] = None
        pause = 0.02
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
                give_up = now + patience if give_up is None else give_up
                if now + pause > give_up:
                    raise
            if self.closed.wait(pause):
                raise _closed()
            pause = min(2 * pause, 0.5)

    def close(self) -> None:
        if os.getpid() != self._pid or self.closed.is_set():
            return
        self.closed.set()
        self.follower.wake()
        with self._lock:
            if self._session is not None:
                self._session.close()


def _closed() -> errors.CkptdError:
    return errors.CkptdError("this client is closed; call ckptd.connect() again", reason="CLOSED")
