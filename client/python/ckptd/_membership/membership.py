"""This rank's membership in one run: the joined session, the attempt, the ordinals, and the saves that have
not ended.
"""

import collections
import copy
import dataclasses
import errno
import logging
import os
import socket
import stat
import threading
import time
from typing import Any, Callable, Deque, Iterable, List, NamedTuple, Optional, Set, Tuple, TypeVar

from ckptd import errors
from ckptd._bucket_url import is_bucket_url
from ckptd._membership.launch import Launch, process_id
from ckptd._membership.rank_holders import ordinals_of, replace_older
from ckptd._membership.unended_save import Recovery, UnendedSave, Watcher
from ckptd._session.connection import Connection
from ckptd._session.session import Session
from ckptd._wire.protocol import messages
from ckptd.retention import Keep
from ckptd.uploads import Upload, message_of

T = TypeVar("T")
_log = logging.getLogger("ckptd")

RPC_SECONDS = 30.0
ATTACH_SECONDS = 120.0  # The daemon may have to recover the root first.
_REMEMBERED_FAILURES = 100
_IN_USE_SECONDS = 10.0  # How long a new launch waits for the end of another job's processes.
_IN_USE_PAUSE_SECONDS = 0.2


class Joined(NamedTuple):
    """The run as one session has joined it."""

    session: Session
    run: str  # Its resource name, `runs/{run}`.
    attempt: int
    run_id: str


@dataclasses.dataclass(frozen=True)
class JoinOptions:
    """The options with which a rank joins a run: arguments of Client.run(), which describes them."""

    run_id: str = ""  # The id that the run must have; empty: any.
    attempt: int = 0  # The attempt that this launch must be; 0: any.
    keep: Optional[Keep] = None  # The retention policy that saves bring; None leaves it to the other ranks.
    commit_timeout: float = 600.0  # Seconds from a save's first Begin to its last Seal.
    takeover: bool = False  # Fences off another job that runs in the root.
    upload: Optional[Upload] = None  # Which checkpoints the daemon copies to a bucket; None: none.
    share_unchanged: bool = False  # Files that have not changed since the last checkpoint are shared with it.


# For how long a network file system may show another node's new directory as missing or stale.
STALE_SECONDS = 5.0


def _has_file(path: str) -> bool:
    """True if the path, or what there is of it, is no directory, or a link to nothing."""
    while path != os.path.dirname(path):
        try:
            return not stat.S_ISDIR(os.stat(path).st_mode)
        except NotADirectoryError:
            return True
        except OSError:
            if os.path.islink(path):
                return True
            path = os.path.dirname(path)
    return False


class RootDirectory:
    """The root directory of a run, made if it is missing unless `make` is false.

    `descriptor` is None where this process cannot open it, as in another container; `error` says why. It is also None of
    a root in a bucket, which only the daemon reads and writes.
    """

    def __init__(self, path: str, make: bool = True) -> None:
        self.descriptor: Optional[int] = None
        self.error = ""
        self.is_bucket = is_bucket_url(path)
        if self.is_bucket:
            return
        deadline = time.monotonic() + STALE_SECONDS
        while not self._open(path, make) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _open(self, path: str, make: bool) -> bool:
        """Returns false if another node's change may explain the error, so that it is worth another try."""
        try:
            if make:
                os.makedirs(path, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError):
            self.error = "it, or a part of its path, is a file and no directory"
            return _has_file(path)
        except OSError as error:
            self.error = _why_not_made(error) if make else error.strerror or str(error)
            return error.errno != errno.ESTALE
        self.error = ""
        return True

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def _why_not_made(error: OSError) -> str:
    """Returns what an error says of a root that was to be made. os.makedirs() names the first directory that is not there."""
    why = error.strerror or str(error)
    if error.filename is None:
        return why
    try:
        os.lstat(error.filename)
    except FileNotFoundError:
        return (
            f"there is no {error.filename} on {socket.gethostname()}, and this user cannot make it ({why}); "
            "mount its file system there, or make it for this user"
        )
    except OSError:
        pass  # It may be there.
    return why


class Membership:
    """One rank's membership in one run. Thread-safe.

    It joins the run in each session of the connection, and tells each new daemon which saves of this rank an
    earlier one has not finished. Saves, readers and the run itself are built on it and know nothing of each
    other.
    """

    def __init__(
        self,
        connection: Connection,
        root: str,
        launch: Launch,
        recovery: Recovery,
        watcher: Watcher,
        options: JoinOptions,
        *,
        copy_threads: int,
        read_threads: int,
        keep_alive: object,
    ) -> None:
        """Does not join yet.

        Args:
            root: absolute path of the root directory, or the URL of a root in a bucket.
            keep_alive: referred to as long as this object lives: what closes the connection when it is
                collected.
        """
        self.connection = connection
        self.root = root
        self.directory = RootDirectory(root)
        self.launch = launch
        self.recovery = recovery
        self.watcher = watcher
        self.keep = options.keep  # Run.retention replaces it.
        self.share_unchanged = options.share_unchanged
        self.commit_timeout = options.commit_timeout
        self.copy_threads = copy_threads
        self.read_threads = read_threads
        self._keep_alive = keep_alive
        self._options = options
        self._lock = threading.Lock()
        self._join_lock = threading.Lock()
        self._present: Optional[Joined] = None
        self._ordinals = ordinals_of(connection, root, launch.rank)
        self._replaced = False
        self._saves_begun = 0  # In all attempts.
        self.last_layout: Any = None  # The _saving.layout.Layout of its last part; None: there is none.
        self._unended: Set[UnendedSave] = set()
        self._failures: Deque[errors.CkptdError] = collections.deque(maxlen=_REMEMBERED_FAILURES)

    @property
    def rank(self) -> int:
        return self.launch.rank

    @property
    def world_size(self) -> int:
        return self.launch.world_size

    # ---- joining

    @property
    def present(self) -> Optional[Joined]:
        """The run as it was joined last; None before the first time. Its session may have ended."""
        return self._present

    def joined(self, timeout: float = ATTACH_SECONDS) -> Joined:
        """Returns the run as joined in the present session; joins it there if that has not been done yet."""
        deadline = time.monotonic() + timeout
        session = self.connection.session(timeout)
        if self._replaced:
            raise errors.Refused(
                f"this Run (rank {self.rank} of {self.root}) was replaced: the process has made a newer one with "
                "Client.run; use that one",
                reason="RANK_TAKEN",
                ranks=[self.rank],
            )
        present = self._present
        if present is not None and present.session is session:
            return present
        with self._join_lock:
            present = self._present
            if present is not None and present.session is session:
                return present
            with self._lock:
                elsewhere = [save for save in self._unended if save.daemon_instance != session.daemon_instance]
            recoverable = [save for save in elsewhere if save.is_recoverable()]
            orphaned = [save for save in elsewhere if save not in recoverable]
            joined = self._join(session, orphaned, max(0.0, deadline - time.monotonic()))
            self._assign(orphaned, session)
            self.recovery.add(recoverable)  # Before any Begin of this rank: await_earlier() keeps it behind them.
            replace_older(self)  # Only now: one that cannot join replaces none.
            for warning in joined.warnings if self._present is None else ():
                _log.warning("ckptd: %s", warning)
            self._present = Joined(session, joined.run, joined.attempt, joined.run_id)
            return self._present

    def join_when_free(self) -> None:
        """Joins; waits a little for the end of another job that still runs in the root.

        A scheduler may start a job again before the processes of the one before are gone.
        """
        deadline = time.monotonic() + _IN_USE_SECONDS
        has_warned = False
        while True:
            try:
                self.connection.repeat(self.joined, ATTACH_SECONDS)
                return
            except errors.Refused as error:
                if error.reason != "RUN_IN_USE" or time.monotonic() >= deadline:
                    raise
                if not has_warned:
                    _log.warning("ckptd: %s; waiting up to %.0f s for its end", error, _IN_USE_SECONDS)
                has_warned = True
            self.connection.closed.wait(_IN_USE_PAUSE_SECONDS)

    def replace(self) -> None:
        """A newer membership of this process has taken the rank: every later call says so."""
        self._replaced = True
        self.watcher.remove_run(self)

    def ask(self, call: "Callable[[Joined], T]", timeout: float) -> T:
        """Returns call(joined), repeated for up to `timeout` seconds while the daemon is away."""
        return self.connection.repeat(lambda: call(self.joined()), timeout)

    def report_orphaned(self, joined: Joined, save: UnendedSave) -> None:
        """Tells the daemon that this rank cannot recover a save: then it tells the other ranks, too."""
        if joined.attempt == save.attempt:
            self._join(joined.session, [save], RPC_SECONDS)
        self._assign([save], joined.session)

    def _join(self, session: Session, orphaned: "Iterable[UnendedSave]", timeout: float) -> Any:
        if session.handoff is not None and self.directory.descriptor is None and not self.directory.is_bucket:
            raise errors.Refused(
                f"the root {self.root} cannot be opened: {self.directory.error}", reason="ROOT_UNSUITABLE"
            )
        deadline = time.monotonic() + timeout
        request = messages.JoinRunRequest(
            root=session.attach_root(self.directory.descriptor, self.root, timeout),
            run_id=self._options.run_id,
            rank=self.rank,
            world_size=self.world_size,
            local_world_size=self.launch.local_world_size,
            local_ranks=self.launch.local_ranks,
            launch_id=self.launch.launch_id,
            attempt=self._options.attempt,
            process=process_id(),
            job=self.launch.job,
            takeover=self._options.takeover,
            upload=message_of(self._options.upload),
        )
        request.orphaned.extend(save.key for save in orphaned)
        return session.call(session.checkpoints.JoinRun, request, max(0.0, deadline - time.monotonic()))

    def _assign(self, orphaned: "Iterable[UnendedSave]", session: Session) -> None:
        """Leaves saves to the session's daemon: it has them on disk, or has reported to every rank that they
        are lost.
        """
        with self._lock:
            for save in orphaned:
                save.assign_to(session.daemon_instance)
                self._unended.discard(save)

    # ---- saves

    def next_number(self) -> int:
        """Returns the number of the save that this rank begins now, in all attempts, from 1."""
        with self._lock:
            self._saves_begun += 1
            return self._saves_begun

    def next_ordinal(self, tag: str, attempt: int, ranks: Tuple[int, ...] = ()) -> int:
        """Returns the ordinal of the save of a tag that these ranks begin now (empty: all ranks)."""
        with self._lock:
            return self._ordinals.next(tag, attempt, ranks)

    def advance_ordinal(self, tag: str, number: int, ranks: Tuple[int, ...] = ()) -> None:
        """Makes the next ordinal of a tag at least `number`, which these ranks count (empty: all ranks)."""
        attempt = self.joined(RPC_SECONDS).attempt
        with self._lock:
            self._ordinals.advance_to(tag, attempt, number, ranks)

    def add_unended(self, save: UnendedSave) -> None:
        """Remembers a save that was sealed, and has it followed to its end."""
        with self._lock:
            self._unended.add(save)
        self.watcher.follow(save)

    def remove_unended(self, save: UnendedSave) -> None:
        """Forgets a save that has ended. No-op if it is not remembered."""
        with self._lock:
            self._unended.discard(save)

    def add_failure(self, error: errors.CkptdError) -> None:
        """Remembers why a save did not become a checkpoint."""
        with self._lock:
            # A copy has no traceback, whose frames would keep the state that was being saved.
            self._failures.append(copy.copy(error))

    def failures(self) -> List[errors.CkptdError]:
        """Returns the last 100 failures, oldest first."""
        with self._lock:
            return list(self._failures)
